#include "backend/exec/progress_role.h"

namespace shardwire::internal {

bool ProgressRole::enterCallbacks(std::uint64_t* turn) {
  const MutexLock lock(mutex_);
  inCallbacks_ = true;
  since_ = Clock::now();
  *turn = ++turn_;
  changed_.notifyOne();
  return numFollowers_ == 0;
}

bool ProgressRole::leaveCallbacks(std::uint64_t turn) {
  const MutexLock lock(mutex_);
  if (turn_ != turn) {
    return false;
  }
  inCallbacks_ = false;
  return true;
}

bool ProgressRole::follow() {
  const MutexLock lock(mutex_);
  ++numFollowers_;
  const bool leads = takeOver();
  --numFollowers_;
  return leads;
}

// Waits until one call of callbacks has kept the leader for too long (true), or for the end.
bool ProgressRole::takeOver() {
  while (!stopped_) {
    if (!inCallbacks_) {
      changed_.wait(mutex_);
      continue;
    }
    const std::uint64_t seen = turn_;
    const Clock::time_point patience = since_ + kCallbackPatience;
    while (!stopped_ && inCallbacks_ && turn_ == seen) {
      if (Clock::now() >= patience) {
        ++turn_;
        inCallbacks_ = false;
        return true;
      }
      changed_.waitUntil(mutex_, patience);
    }
  }
  return false;
}

void ProgressRole::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notifyAll();
}

}  // namespace shardwire::internal
