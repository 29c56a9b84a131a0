#include "backend/exec/failure_callback.h"

#include <utility>

#include "backend/base/user_call.h"

namespace shardwire::internal {

void FailureCallback::set(std::function<void()> call) {
  const MutexLock lock(mutex_);
  call_ = std::move(call);
  isSet_.store(true, std::memory_order_release);
}

bool FailureCallback::add(StatusCode code) {
  if (code == StatusCode::kAborted || !isSet_.load(std::memory_order_acquire)) {
    return false;
  }
  failures_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

void FailureCallback::run() {
  if (!isSet_.load(std::memory_order_acquire)) {
    return;
  }
  const MutexLock lock(mutex_);
  if (const std::uint64_t failures = failures_.load(std::memory_order_acquire); failures != reported_) {
    reported_ = failures;
    callUser("the callback for the failure of a group", call_);
  }
}

}  // namespace shardwire::internal
