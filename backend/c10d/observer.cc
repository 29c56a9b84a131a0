#include "backend/c10d/observer.h"

#include <fmt/format.h>

#include "backend/base/interruptible_wait.h"
#include "backend/base/user_call.h"

namespace shardwire::internal {

void Observer::enableTiming() {
  timing_.store(true, std::memory_order_relaxed);
  active_.store(true, std::memory_order_relaxed);
}

void Observer::setHook(Hook hook) {
  const MutexLock lock(mutex_);
  hook_ = std::make_shared<const Hook>(std::move(hook));
  active_.store(true, std::memory_order_relaxed);
}

void Observer::began() {
  const MutexLock lock(mutex_);
  ++pending_;
}

void Observer::ended(const FinishedOperation& operation) {
  // However the hook ends, threads that wait for all operations stop waiting for this operation.
  struct Over {
    Observer& observer;
    ~Over() { observer.noteOver(); }
  };
  const Over over{*this};
  std::shared_ptr<const Hook> hook;
  {
    const MutexLock lock(mutex_);
    hook = hook_;
  }
  if (hook != nullptr) {
    callUser("the completion hook of a group", [&] { (*hook)(operation); });
  }
}

void Observer::noteOver() {
  const MutexLock lock(mutex_);
  if (--pending_ == 0) {
    allEnded_.notifyAll();
  }
}

Status Observer::waitForAll(Duration timeout) {
  const Deadline deadline = deadlineAfter(timeout);
  InterruptibleWait slices(deadline);
  while (true) {
    {
      const MutexLock lock(mutex_);
      for (const Deadline until = slices.sliceEnd(); pending_ != 0 && Clock::now() < until;) {
        allEnded_.waitUntil(mutex_, until);
      }
      if (pending_ == 0) {
        return Status::ok();
      }
      if (Clock::now() >= deadline) {
        return Status(StatusCode::kTimeout, fmt::format("{} operations were still pending", pending_));
      }
    }
    if (slices.isInterrupted()) {
      return interruptedStatus("waiting for pending operations");
    }
  }
}

}  // namespace shardwire::internal
