// Ctrl-C in a wait (shardwire/interrupt.h): the wait is cut into slices, and the check runs between slices. A wait of
// less than 50 ms never runs the check, and without a check no wait is cut.
#pragma once

#include <cstdint>
#include <string_view>

#include "shardwire/export.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// One wait of one thread.
class SHARDWIRE_EXPORT InterruptibleWait {
 public:
  explicit InterruptibleWait(Deadline until);
  // Sleep until here at most, then ask.
  Deadline sliceEnd() const;
  // Cheap, for loops: asks only where a slice ended. True once: leave with interruptedStatus().
  bool isInterrupted();

 private:
  const Deadline until_;
  Deadline nextLook_ = kNoDeadline;  // kNoDeadline: there is no check
};

// Waits of this thread inside this scope are not interrupted: waits of destructors, which cannot return an error, and
// waits that notify peers of an interrupt.
class SHARDWIRE_EXPORT NoInterrupts {
 public:
  NoInterrupts();
  ~NoInterrupts();
  NoInterrupts(const NoInterrupts&) = delete;
  NoInterrupts& operator=(const NoInterrupts&) = delete;
};

// Number of interrupted waits of this thread so far. For callers whose callees may handle an interrupt like a failure
// and recover.
std::uint64_t numInterrupts();
// kInterrupted is the KeyboardInterrupt of one rank; to the peers the rank has given up.
inline StatusCode codeForPeers(StatusCode code) {
  return code == StatusCode::kInterrupted ? StatusCode::kAborted : code;
}
// kInterrupted: "`what` was interrupted by a signal (Ctrl-C?)".
SHARDWIRE_EXPORT Status interruptedStatus(std::string_view what);

}  // namespace shardwire::internal
