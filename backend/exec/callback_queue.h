// The callbacks of finished operations, where a callback may wait. A callback may wait for the callback of an operation
// that ended in the same poll: a callback completes a c10 future. So callbacks that have not started stand in a queue
// of the group: while one callback keeps its thread for long, another thread goes on with the next. Callbacks leave the
// queue in the order of completion. Any thread.
#pragma once

#include <atomic>
#include <deque>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/activity.h"

namespace shardwire::internal {

class CallbackQueue {
 public:
  // Empties the list. True: more than one operation is in the queue, so another thread must look at isStuck().
  bool add(std::vector<Activity::Completion>* list);
  // Runs callbacks, and destroys the operations, until the queue is empty.
  void run();
  bool isEmpty() const { return numQueued_.load(std::memory_order_acquire) == 0; }
  // Whether the next callback has waited for kCallbackPatience after the last start.
  bool isStuck() const { return !isEmpty() && Clock::now() >= due_.load(std::memory_order_relaxed); }

 private:
  Mutex mutex_;
  std::deque<Activity::Completion> queue_ SW_GUARDED_BY(mutex_);
  std::atomic<std::size_t> numQueued_{0};
  std::atomic<Clock::time_point> due_{};
};

}  // namespace shardwire::internal
