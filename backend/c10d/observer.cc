#include "backend/c10d/observer.h"

#include <fmt/format.h>

namespace shardwire::internal {

void Observer::enableTiming() {
  timing_.store(true, std::memory_order_relaxed);
  active_.store(true, std::memory_order_relaxed);
}

void Observer::setHook(Hook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::make_shared<const Hook>(std::move(hook));
  active_.store(true, std::memory_order_relaxed);
}

void Observer::began() {
  const std::lock_guard lock(mutex_);
  ++pending_;
}

void Observer::ended(const FinishedOperation& operation) {
  std::shared_ptr<const Hook> hook;
  {
    const std::lock_guard lock(mutex_);
    hook = hook_;
  }
  if (hook != nullptr) {
    (*hook)(operation);
  }
  const std::lock_guard lock(mutex_);
  if (--pending_ == 0) {
    allEnded_.notify_all();
  }
}

Status Observer::waitForAll(Duration timeout) {
  std::unique_lock lock(mutex_);
  if (allEnded_.wait_for(lock, timeout, [this] { return pending_ == 0; })) {
    return Status::ok();
  }
  return Status(StatusCode::kTimeout, fmt::format("{} operations were still pending", pending_));
}

}  // namespace shardwire::internal
