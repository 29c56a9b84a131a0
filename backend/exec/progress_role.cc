#include "backend/exec/progress_role.h"

namespace shardwire::internal {

bool ProgressRole::enterCallbacks(std::uint64_t* turn) {
  std::lock_guard lock(mutex_);
  inCallbacks_ = true;
  since_ = Clock::now();
  *turn = ++turn_;
  changed_.notify_one();
  return numFollowers_ == 0;
}

bool ProgressRole::leaveCallbacks(std::uint64_t turn) {
  std::lock_guard lock(mutex_);
  if (turn_ != turn) {
    return false;
  }
  inCallbacks_ = false;
  return true;
}

bool ProgressRole::follow() {
  std::unique_lock lock(mutex_);
  ++numFollowers_;
  while (!stopped_) {
    changed_.wait(lock, [&] { return stopped_ || inCallbacks_; });
    const std::uint64_t seen = turn_;
    changed_.wait_until(lock, since_ + kCallbackPatience, [&] { return stopped_ || !inCallbacks_ || turn_ != seen; });
    if (!stopped_ && inCallbacks_ && turn_ == seen) {
      ++turn_;
      inCallbacks_ = false;
      --numFollowers_;
      return true;
    }
  }
  --numFollowers_;
  return false;
}

void ProgressRole::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace shardwire::internal
