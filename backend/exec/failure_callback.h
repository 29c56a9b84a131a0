// The callback that a group's owner registers for failures: a timeout, a dead rank, ranks that disagree. The callback
// runs once after each failure, outside of the engine's lock, and before callers see the failure as far as possible.
// Any thread; add() under the engine's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "backend/base/mutex.h"
#include "shardwire/status.h"

namespace shardwire::internal {

class FailureCallback {
 public:
  void set(std::function<void()> call);
  // Counts a failure. True: run() is due. False without a registered callback, and for an abort by the user.
  bool add(StatusCode code);
  // Returns when the callback has run for all failures counted before.
  void run();

 private:
  std::atomic<bool> isSet_{false};  // release: a thread that loads true finds call_
  std::atomic<std::uint64_t> failures_{
      0};        // acq_rel: a thread that loads a count finds the flight recorder as of the failure
  Mutex mutex_;  // held while call_ runs; a second thread waits for the end
  std::function<void()> call_ SW_GUARDED_BY(mutex_);
  std::uint64_t reported_ SW_GUARDED_BY(mutex_) = 0;  // of failures_
};

}  // namespace shardwire::internal
