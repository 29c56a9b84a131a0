// One operation in flight inside the engine, and the Work that its caller holds. The engine steps it under its lock; callers use the Work
// side from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/exec/frame.h"
#include "shardwire/work.h"

namespace shardwire::internal {

class Engine;

// What operation this is, for messages: "all_reduce(float32[1024], sum)". Shared, so that a run copies no text.
using Description = std::shared_ptr<const std::string>;

class Activity : public Work, public std::enable_shared_from_this<Activity> {
 public:
  Activity() = default;
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  bool isDone() const override { return done_.load(std::memory_order_acquire); }
  Status wait(Deadline deadline) override;
  Status status() const override;
  void onDone(std::function<void(const Status&)> callback) override;

  // The rest is the engine's: all under its lock.

  // Moves on as far as possible without waiting; true when anything moved. `blockedBulk[peer]` is set while an earlier operation still has
  // staged bytes to send to that peer; an operation that will have some left sets it.
  virtual bool step(Engine& engine, std::vector<bool>& blockedBulk) = 0;
  // A control frame of this operation (not of point-to-point).
  virtual Status onFrame(Engine& engine, Rank from, const FrameHeader& header, std::span<const std::byte> payload) = 0;
  // Nothing is left to do.
  virtual bool finished() const = 0;
  // Whether the operation cannot end without more from this peer.
  virtual bool needs(Rank peer) const = 0;
  // For messages: "rank(s) 2 did not arrive".
  virtual std::string waitingFor() const = 0;
  // True: a timeout of this operation leaves the group usable (compileOp), because no tensor was touched.
  virtual bool cancellable() const { return false; }
  // Ordered operations carry a sequence number and a fingerprint in every frame.
  virtual bool ordered() const { return true; }

  // Set by the engine when it takes the activity; reset by reuse().
  std::uint64_t seq = 0;
  std::uint64_t fingerprint = 0;
  Deadline deadline = kNoDeadline;
  Duration timeout{0};
  Clock::time_point started{};
  Description description;
  // Engine: held while in flight, so that a waiter finds it; dropped on completion.
  std::shared_ptr<Engine> engine;
  std::shared_ptr<void> keepAlive;
  Clock::time_point ended{};
  // Run under the lock after success, before anybody sees it done: unpacks into tensors that are not contiguous. Mostly empty.
  std::function<void()> epilogue;

  // Marks it done with `status`, and hands back what must be run and destroyed outside of the engine's lock.
  struct Completion {
    std::shared_ptr<Activity> activity;
    std::shared_ptr<void> keepAlive;
    std::shared_ptr<Engine> engine;
    Status status;
  };
  Completion complete(Status status);
  // Runs the callbacks given to onDone. Not under any lock.
  void runCallbacks(const Status& status);

 protected:
  // Makes a finished activity ready for another run (pooled runs).
  void reuse();

 private:
  std::atomic<bool> done_{false};  // release pairs with isDone's acquire: status_ and outputs are visible to whoever sees true
  mutable std::mutex mutex_;       // guards callbacks_ and called_; engine_ copies
  std::vector<std::function<void(const Status&)>> callbacks_;
  bool called_ = false;
  Status status_;
};

}  // namespace shardwire::internal
