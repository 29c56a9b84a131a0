// The choice of the leader among the progress threads. The leader also runs callbacks of finished operations. A
// callback may wait for another operation of the same group (a c10 future waits without driving), so while a callback
// keeps the leader for long a follower takes the lead, and the old leader follows from then on. Any thread.
#pragma once

#include <cstdint>

#include "backend/base/mutex.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// The time that a callback may keep its thread before another thread goes on, twice as long at most. Callbacks that may
// wait leave the group's queue in the order of completion (CallbackQueue), each on the thread that takes it.
inline constexpr Duration kCallbackPatience = std::chrono::milliseconds(1);

class ProgressRole {
 public:
  // Leader: callbacks begin. True when no thread follows: then the caller starts a following thread, or calls
  // noFollowerStarted().
  bool enterCallbacks(std::uint64_t* turn);
  void noFollowerStarted();
  // Leader: callbacks are over. False when another thread leads by now.
  bool leaveCallbacks(std::uint64_t turn);
  // Follower: returns when this thread leads (true), or at the end (false).
  bool follow();
  // The end: all followers return.
  void stop();

 private:
  bool takeOver() SW_REQUIRES(mutex_);
  bool watch() SW_REQUIRES(mutex_);

  Mutex mutex_;
  ConditionVariable changed_;
  std::uint64_t turn_ SW_GUARDED_BY(mutex_) = 0;  // counts what happens to the lead
  bool inCallbacks_ SW_GUARDED_BY(mutex_) = false;
  Clock::time_point since_ SW_GUARDED_BY(mutex_){};
  int numFollowers_ SW_GUARDED_BY(mutex_) = 0;
  bool isFollowerStarting_ SW_GUARDED_BY(mutex_) = false;  // a new thread has not called follow() so far
  bool isWatched_ SW_GUARDED_BY(mutex_) = false;           // a follower measures the time of the callbacks
  bool stopped_ SW_GUARDED_BY(mutex_) = false;
};

}  // namespace shardwire::internal
