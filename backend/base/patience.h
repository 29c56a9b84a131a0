// How a thread waits for a peer whose answer is mostly a microsecond away: it polls, after a while offers its core to others between polls,
// and after a longer while sleeps where the peer wakes it. Who waits asks spins() after each poll that moved nothing.
//
// A yield costs a microsecond where only the peer wants this core, and slices of milliseconds where other programs compute, since the
// kernel runs each of them first. A sleeper who is woken runs before those. So after a yield that took long, no thread of this process
// yields for a while: waits sleep as soon as they would yield. The next yield after that is a trial: the while grows as long as trials take
// long.
#pragma once

#include "shardwire/types.h"

namespace shardwire::internal {

// Whether a yield is likely to be short. Any thread.
bool mayYield(Clock::time_point now);
// Offers the core. Takes the time of a look at the clock just now, and returns that of the next. Any thread.
Clock::time_point yieldCore(Clock::time_point now);

// Of one wait of one thread.
class Patience {
 public:
  // Polls for `spin`, and offers its core to others from `yieldAfter` on. yieldAfter 0: between any two polls, for there are fewer cores
  // than ranks.
  Patience(Duration spin, Duration yieldAfter);

  // A poll moved nothing. True: poll again, now that the core was offered if it was time to; false: sleep.
  bool spins();
  // A poll moved something, and the next answer is expected at once.
  void moved();
  // A sleep brought nothing: the next one follows at once.
  void sleptInVain() { hasSlept_ = true; }
  // When the clock was last looked at: four yields, or 16 polls ago at most.
  Clock::time_point now() const { return now_; }

 private:
  bool isTimeToLook(bool yieldsAlways);

  const Duration spin_;
  const Duration yieldAfter_;
  Clock::time_point now_;
  Clock::time_point started_;  // of the polls since something moved
  unsigned numPolls_ = 0;      // since then
  unsigned numMoves_ = 0;
  bool hasLooked_ = false;  // since then
  bool hasSlept_ = false;
};

}  // namespace shardwire::internal
