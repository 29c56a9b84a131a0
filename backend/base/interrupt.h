// What a wait does about Ctrl-C (shardwire/interrupt.h): it is cut into slices, and between them it asks. A wait that is over within 50 ms
// never asks, and without a check nothing is cut.
#pragma once

#include <cstdint>
#include <string_view>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// One wait of one thread.
class InterruptibleWait {
 public:
  explicit InterruptibleWait(Deadline until);
  // Sleep until here at most, then ask.
  Deadline sliceEnd() const;
  // Cheap, for loops: asks only where a slice ended. True once: leave with interruptedStatus().
  bool isInterrupted();

 private:
  const Deadline until_;
  Deadline nextLook_ = kNoDeadline;  // kNoDeadline: nobody is to be asked
};

// Waits of this thread inside of this scope are not interrupted: those of destructors, which cannot say so, and those that tell others of
// an interrupt.
class NoInterrupts {
 public:
  NoInterrupts();
  ~NoInterrupts();
  NoInterrupts(const NoInterrupts&) = delete;
  NoInterrupts& operator=(const NoInterrupts&) = delete;
};

// How many waits of this thread were interrupted so far: for those whose callees may take an interrupt for a failure from which they can
// recover.
std::uint64_t numInterrupts();
// kInterrupted is the KeyboardInterrupt of one rank; for its peers it is a rank that gave up.
inline StatusCode codeForPeers(StatusCode code) {
  return code == StatusCode::kInterrupted ? StatusCode::kAborted : code;
}
// kInterrupted: "`what` was interrupted by a signal (Ctrl-C?)".
Status interruptedStatus(std::string_view what);

}  // namespace shardwire::internal
