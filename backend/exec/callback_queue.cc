#include "backend/exec/callback_queue.h"

#include <iterator>
#include <utility>

#include "backend/exec/progress_role.h"

namespace shardwire::internal {

bool CallbackQueue::add(std::vector<Activity::Completion>* list) {
  const MutexLock lock(mutex_);
  queue_.insert(queue_.end(), std::make_move_iterator(list->begin()), std::make_move_iterator(list->end()));
  list->clear();
  due_.store(Clock::now() + kCallbackPatience, std::memory_order_relaxed);
  numQueued_.store(queue_.size(), std::memory_order_release);
  return queue_.size() > 1;
}

void CallbackQueue::run() {
  for (;;) {
    Activity::Completion next;
    {
      const MutexLock lock(mutex_);
      if (queue_.empty()) {
        return;
      }
      next = std::move(queue_.front());
      queue_.pop_front();
      due_.store(Clock::now() + kCallbackPatience, std::memory_order_relaxed);
      numQueued_.store(queue_.size(), std::memory_order_release);
    }
    next.activity->runCallbacks();
  }
}

}  // namespace shardwire::internal
