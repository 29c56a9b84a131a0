// Notifies a group, from another thread of the process, that the group's late links have something to do
// (LateLinks::hasNews). The object outlives the group: the end of the group removes the bells, since the other thread
// must not hold the last reference to a bell. Any thread.
#pragma once

#include <atomic>

#include "backend/base/mutex.h"
#include "backend/fabric/rank_bell.h"

namespace shardwire::internal {

class LateWakeup {
 public:
  // Both bells are valid until end().
  LateWakeup(BellWords& words, ProgressBell& progress) : words_(&words), progress_(progress) {}
  void ring() {
    isDue_.store(true, std::memory_order_seq_cst);
    const MutexLock lock(mutex_);
    if (words_ != nullptr) {
      ringIfArmed(*words_, [this] { progress_.ring(); });
      progress_.ring();
    }
  }
  // The group ends.
  void end() {
    const MutexLock lock(mutex_);
    words_ = nullptr;
  }
  bool isDue() const { return isDue_.load(std::memory_order_seq_cst); }
  void clear() { isDue_.store(false, std::memory_order_seq_cst); }

 private:
  std::atomic<bool> isDue_{false};
  Mutex mutex_;
  BellWords* words_ SW_GUARDED_BY(mutex_);
  ProgressBell& progress_;  // used only while words_ is not null
};

}  // namespace shardwire::internal
