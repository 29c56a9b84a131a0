// One operation in flight. Shared by the caller and the engine; all methods from any thread.
#pragma once

#include <functional>
#include <memory>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire {

class Work {
 public:
  virtual ~Work() = default;

  virtual bool isDone() const = 0;
  // Blocks until done or the deadline; drives progress itself meanwhile. Ok or the operation's error when done; kTimeout (and the operation
  // goes on) when the deadline comes first; kInterrupted (and it goes on) when an interrupt does (shardwire/interrupt.h). The operation's
  // own timeout is apart: when that passes, the operation fails.
  virtual Status wait(Deadline deadline = kNoDeadline) = 0;
  // Ok while pending and after success.
  virtual Status status() const = 0;
  // Calls `callback` once, when done (at once if it already is), on whichever thread notices; never under a lock of ours. An exception that
  // it throws is logged, and goes no further.
  virtual void onDone(std::function<void(const Status&)> callback) = 0;
  // The rank that a receive from any source matched; -1 otherwise or before it is done.
  virtual Rank sourceRank() const { return -1; }
};

using WorkPtr = std::shared_ptr<Work>;

// Whether wait() gave `status` because of its caller rather than of the operation: the deadline came, or an interrupt.
inline bool endedEarly(const Status& status, const Work& work) {
  return status.code() == StatusCode::kInterrupted || (!status.isOk() && !work.isDone());
}

}  // namespace shardwire
