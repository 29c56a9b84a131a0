#include "backend/exec/progress_role.h"

namespace shardwire::internal {

bool ProgressRole::enterCallbacks(std::uint64_t* turn) {
  const MutexLock lock(mutex_);
  inCallbacks_ = true;
  since_ = Clock::now();
  *turn = ++turn_;
  if (!isWatched_) {
    changed_.notifyOne();
  }
  const bool lacksFollower = numFollowers_ == 0 && !isFollowerStarting_;
  isFollowerStarting_ |= lacksFollower;
  return lacksFollower;
}

void ProgressRole::noFollowerStarted() {
  const MutexLock lock(mutex_);
  isFollowerStarting_ = false;
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
  isFollowerStarting_ = false;
  ++numFollowers_;
  const bool leads = takeOver();
  --numFollowers_;
  return leads;
}

// Waits until one call of callbacks has kept the leader for too long (true), or for the end.
bool ProgressRole::takeOver() {
  while (!stopped_) {
    if (!inCallbacks_ || isWatched_) {
      changed_.wait(mutex_);
      continue;
    }
    isWatched_ = true;
    const bool leads = watch();
    isWatched_ = false;
    if (leads) {
      return true;
    }
  }
  return false;
}

// Looks again after each patience until no callback began meanwhile: the leader of many short callbacks need not wake
// this thread for each of them.
bool ProgressRole::watch() {
  for (;;) {
    const std::uint64_t seen = turn_;
    const Clock::time_point until = (inCallbacks_ ? since_ : Clock::now()) + kCallbackPatience;
    while (!stopped_ && Clock::now() < until) {
      changed_.waitUntil(mutex_, until);
    }
    if (stopped_ || (!inCallbacks_ && turn_ == seen)) {
      return false;
    }
    if (inCallbacks_ && Clock::now() >= since_ + kCallbackPatience) {
      ++turn_;
      inCallbacks_ = false;
      return true;
    }
  }
}

void ProgressRole::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notifyAll();
}

}  // namespace shardwire::internal
