#include "backend/c10d/live_groups.h"

#include <exception>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/base/per_process.h"

namespace shardwire::internal {

namespace {

using WeakGroup = c10::weak_intrusive_ptr<ProcessGroupShardwire>;

struct LiveGroups {
  Mutex mutex;
  std::vector<WeakGroup> groups SW_GUARDED_BY(mutex);
};

}  // namespace

void addLiveGroup(const c10::intrusive_ptr<ProcessGroupShardwire>& group) {
  LiveGroups& all = PerProcess<LiveGroups>::get();
  const MutexLock lock(all.mutex);
  std::erase_if(all.groups, [](const WeakGroup& weak) { return weak.expired(); });
  all.groups.emplace_back(group);
}

void shutdownLiveGroups() {
  std::vector<WeakGroup> groups;
  {
    LiveGroups& all = PerProcess<LiveGroups>::get();
    const MutexLock lock(all.mutex);
    groups.swap(all.groups);
  }
  std::exception_ptr first;  // Ctrl-C: the other groups end nevertheless
  for (const WeakGroup& weak : groups) {
    if (const auto group = weak.lock()) {
      try {
        group->shutdown();
      } catch (...) {
        first = first ? first : std::current_exception();
      }
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace shardwire::internal
