// Reports of a group's operations: calls torch's completion hook, and enables timing. One per group, shared with its
// works. Until a hook or timing is requested, an operation costs one relaxed load. All methods from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "backend/base/mutex.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

struct FinishedOperation {
  ::c10d::OpType type;
  std::uint64_t sequence;
  Clock::time_point started;
  Clock::time_point ended;
};

class Observer {
 public:
  using Hook = std::function<void(const FinishedOperation&)>;

  bool isActive() const { return active_.load(std::memory_order_relaxed); }
  bool isTiming() const { return timing_.load(std::memory_order_relaxed); }
  void enableTiming();
  // For operations that begin later. The hook runs on the thread that notices the end of an operation; an exception of
  // the hook is logged.
  void setHook(Hook hook);

  void began();
  // After began(): runs the hook, then counts the operation as over.
  void ended(const FinishedOperation& operation);
  // Blocks until every operation that began was reported. kTimeout when the operations take longer than `timeout`.
  Status waitForAll(Duration timeout);

 private:
  void noteOver();

  std::atomic<bool> active_ = false;  // relaxed, like timing_: neither flag guards data, the mutex does
  std::atomic<bool> timing_ = false;
  Mutex mutex_;
  ConditionVariable allEnded_;
  std::shared_ptr<const Hook> hook_ SW_GUARDED_BY(mutex_);
  std::uint64_t pending_ SW_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardwire::internal
