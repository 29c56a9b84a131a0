#include "backend/exec/process_engines.h"

#include "backend/base/mutex.h"
#include "backend/base/per_process.h"

namespace shardwire::internal {
namespace {

struct LiveEngines {
  Mutex mutex;
  std::vector<std::weak_ptr<Engine>> engines SW_GUARDED_BY(mutex);
};

}  // namespace

void addProcessEngine(const std::shared_ptr<Engine>& engine) {
  LiveEngines& all = PerProcess<LiveEngines>::get();
  const MutexLock lock(all.mutex);
  std::erase_if(all.engines, [](const auto& each) { return each.expired(); });
  all.engines.push_back(engine);
}

std::vector<std::shared_ptr<Engine>> processEngines() {
  LiveEngines& all = PerProcess<LiveEngines>::get();
  std::vector<std::shared_ptr<Engine>> live;
  const MutexLock lock(all.mutex);
  for (const auto& each : all.engines) {
    if (auto engine = each.lock(); engine != nullptr) {
      live.push_back(std::move(engine));
    }
  }
  return live;
}

}  // namespace shardwire::internal
