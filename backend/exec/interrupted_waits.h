// Waits for operations of a group that a signal ended (shardwire/interrupt.h). The operations go on; if this rank ends
// the group while such an operation is still in flight, the peers are notified of the reason. One object per engine.
// Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/activity.h"

namespace shardwire::internal {

class InterruptedWaits {
 public:
  void add(const std::shared_ptr<Activity>& activity) {
    const MutexLock lock(mutex_);
    std::erase_if(waits_, [](const Wait& wait) { return wait.activity.expired(); });
    waits_.push_back({activity, activity->seq, activity->description.text()});
  }
  // The description of an operation still in flight; nullopt without such an operation. Under the engine's lock.
  std::optional<std::string> pending() {
    const MutexLock lock(mutex_);
    for (const Wait& wait : waits_) {
      if (wait.inFlight()) {
        return wait.description;
      }
    }
    return std::nullopt;
  }

 private:
  struct Wait {
    // Activities are used again for later runs, which have other numbers.
    bool inFlight() const {
      const std::shared_ptr<Activity> alive = activity.lock();
      return alive != nullptr && !alive->isDone() && alive->seq == seq;
    }
    std::weak_ptr<Activity> activity;
    std::uint64_t seq;
    std::string description;
  };
  Mutex mutex_;
  std::vector<Wait> waits_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal
