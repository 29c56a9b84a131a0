// One operation in flight. Shared by the caller and the engine; all methods from any thread.
#pragma once

#include <functional>
#include <memory>

#include "shardwire/export.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire {

class SHARDWIRE_EXPORT Work {
 public:
  virtual ~Work() = default;

  virtual bool isDone() const = 0;
  // Blocks until the operation is done or the deadline passes, and drives progress meanwhile. Returns ok or the
  // operation's error when done; kTimeout when the deadline comes first, kInterrupted when an interrupt comes first
  // (shardwire/interrupt.h). In the last two cases the operation goes on. The operation's own timeout is separate: when
  // that timeout passes, the operation fails.
  virtual Status wait(Deadline deadline = kNoDeadline) = 0;
  // Ok while pending and after success.
  virtual Status status() const = 0;
  // Calls `callback` once when the operation is done (at once if already done), on the thread that notices the end, and
  // never under a lock of ours. An exception thrown by the callback is logged and not passed on.
  virtual void onDone(std::function<void(const Status&)> callback) = 0;
  // The rank that a receive from any source matched; -1 otherwise or before it is done.
  virtual Rank sourceRank() const { return -1; }
};

using WorkPtr = std::shared_ptr<Work>;

// Whether a wait that returned `status` ended before the operation. Otherwise the operation is over, and work.status()
// is the outcome: the wait may have timed out at the moment when the operation ended.
inline bool endedEarly(const Status& status, const Work& work) {
  return status.code() == StatusCode::kInterrupted || (!status.isOk() && !work.isDone());
}

}  // namespace shardwire
