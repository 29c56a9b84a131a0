#include "backend/exec/activity.h"

#include "backend/exec/engine.h"

namespace shardwire::internal {

Status Activity::wait(Deadline until) {
  if (isDone()) {
    return status_;
  }
  std::shared_ptr<Engine> driver;
  {
    // Completion takes the engine away under this lock, so the copy is either valid or null and then we are done.
    std::lock_guard lock(mutex_);
    driver = engine;
  }
  if (driver != nullptr && !driver->drive(*this, until)) {
    return {StatusCode::kTimeout,
            *description + " is still in flight: the wait ended first, the operation goes on (" + driver->groupLabel() + ")"};
  }
  return status_;
}

Status Activity::status() const {
  return isDone() ? status_ : Status::ok();
}

void Activity::onDone(std::function<void(const Status&)> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!called_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(status_);
}

Activity::Completion Activity::complete(Status status) {
  Completion completion;
  completion.activity = shared_from_this();
  completion.status = status;
  ended = Clock::now();
  if (epilogue != nullptr && status.isOk()) {
    epilogue();
  }
  epilogue = nullptr;
  std::lock_guard lock(mutex_);
  completion.keepAlive = std::move(keepAlive);
  completion.engine = std::move(engine);
  keepAlive = nullptr;
  engine = nullptr;
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
  return completion;
}

void Activity::runCallbacks(const Status& status) {
  std::vector<std::function<void(const Status&)>> callbacks;
  {
    std::lock_guard lock(mutex_);
    called_ = true;
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) {
    callback(status);
  }
}

void Activity::reuse() {
  std::lock_guard lock(mutex_);
  done_.store(false, std::memory_order_relaxed);
  called_ = false;
  status_ = Status::ok();
}

}  // namespace shardwire::internal
