// How a thread that watches for a group tells it that late links have something to do (LateLinks::hasNews). Outlives the group, whose end
// takes the inbox away: such a thread must not be the last to hold that, since the inbox holds the fabric. Any thread.
#pragma once

#include <atomic>

#include "backend/base/mutex.h"
#include "backend/transport/shm/inbox.h"
#include "backend/transport/shm/shm_fabric.h"

namespace shardwire::internal {

class LateWakeup {
 public:
  explicit LateWakeup(Inbox* inbox) : inbox_(inbox) {}
  void ring() {
    isDue_.store(true, std::memory_order_seq_cst);
    const MutexLock lock(mutex_);
    if (inbox_ != nullptr) {
      inbox_->ringIfArmed();
      inbox_->fabric()->progressBell().ring();
    }
  }
  // The group goes.
  void end() {
    const MutexLock lock(mutex_);
    inbox_ = nullptr;
  }
  bool isDue() const { return isDue_.load(std::memory_order_seq_cst); }
  void clear() { isDue_.store(false, std::memory_order_seq_cst); }

 private:
  std::atomic<bool> isDue_{false};
  Mutex mutex_;
  Inbox* inbox_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal
