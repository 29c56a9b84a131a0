// The objects on which threads sleep until there is work: the progress bell of a process, and the doorbell of one rank
// of one group.
#pragma once

#include <cstdint>
#include <memory>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// The bell on which the progress thread of a process sleeps, for all groups of the process. Any thread.
class ProgressBell {
 public:
  virtual ~ProgressBell() = default;
  // The count of rings so far.
  virtual std::uint32_t ticket() const = 0;
  // Returns when rung since `ticket`, at `until`, after longestSleep() (100 ms), or spuriously.
  virtual void sleep(std::uint32_t ticket, Deadline until) = 0;
  // The caller stored its change seq_cst before, and the progress thread loads the change seq_cst behind ticket(): so
  // no ring is lost while the bell moves (ProcessBell::moveTo).
  virtual void ring() = 0;
};

// The threads that an armed doorbell wakes: the threads asleep on the doorbell, the process's progress thread, or both.
enum class Wakes : std::uint32_t { kSleepers = 1, kProgress = 2, kAll = 3 };

// The bell of one rank: peers ring the armed bell when they commit a frame, or release a frame after this rank found no
// room. All connections and threads of a group share the bell.
//
// To sleep without losing a wake-up: ticket = arm(), look once more for work, sleep(ticket, until). Any thread may
// disarm() while other threads sleep; such a thread must arm() again before it leaves while other threads are still
// asleep.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  // From here on the next such commit or release rings once, for these threads as well as for the threads of earlier
  // calls; then the bell is disarmed. Returns the count of rings so far.
  virtual std::uint32_t arm(Wakes whom) = 0;
  // Peers need not ring, since a thread is polling. A ring may still come.
  virtual void disarm() = 0;
  // The count of rings so far, without arming: for sleepers woken only by ringSelf().
  virtual std::uint32_t ticket() const = 0;
  // Returns when rung since `ticket`, at `until`, after longestSleep() (100 ms), or spuriously.
  virtual void sleep(std::uint32_t ticket, Deadline until) = 0;
  // Wakes the threads asleep here: used for a handover between threads of one rank.
  virtual void ringSelf() = 0;
  // The bell of this process, one for all of the process's groups.
  virtual std::shared_ptr<ProgressBell> progressBell() = 0;
  // The longest sleep allowed: some wire cannot ring and must be polled.
  virtual Duration longestNap() const { return Duration::max(); }

  // Leaves the reason why this rank gave up, for peers that attach only after the rank has left. Called once, before
  // leave().
  virtual void leaveWord(const Status& /*why*/) {}
  // Notifies the peers that this rank exits normally.
  virtual void leave() = 0;
};

}  // namespace shardwire::internal
