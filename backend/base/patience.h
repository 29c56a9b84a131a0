// How a thread waits for a peer that mostly answers within a microsecond. The thread polls, after a while offers its
// core to others between polls, and after a longer while sleeps until the peer wakes it. A waiter calls spins() after
// each poll that moved nothing.
//
// A yield costs a microsecond where only the peer wants this core. Where other programs compute, a yield costs time
// slices of milliseconds, since the kernel runs each of these programs first; a thread that sleeps and is woken runs
// before such programs. So after a long yield, no thread of this process yields for a while: waits sleep where they
// would otherwise yield. The next yield after this pause is a trial: the pause grows as long as trials take long.
#pragma once

#include "shardwire/types.h"

namespace shardwire::internal {

// Whether a yield is likely to be short. Any thread.
bool mayYield(Clock::time_point now);
// Offers the core. `now` is a time just read from the clock; returns the time after the yield. Any thread.
Clock::time_point yieldCore(Clock::time_point now);
// The state of all waits is as in a new process. Only for simulations, which follow each other in one process.
void forgetYields();

// Of one wait of one thread.
class Patience {
 public:
  // Polls for `spin`, and offers the core to others from `yieldAfter` on. yieldAfter 0: between any two polls, because
  // there are fewer cores than ranks.
  Patience(Duration spin, Duration yieldAfter);

  // To be called after a poll that moved nothing. True: poll again (spins() has yielded if due); false: sleep.
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
