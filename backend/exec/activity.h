// One operation in flight inside the engine, and the Work that its caller holds. The engine steps it under its lock; callers use the Work
// side from any thread.
#pragma once

#include <atomic>
#include <memory>
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
  ~Activity() override;
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
  Clock::time_point started{};  // zero when it was over before anybody looked at the clock, unless `timed`
  Description description;
  std::shared_ptr<void> keepAlive;
  bool timed = false;         // wants `started` and `ended` in any case: reading the clock costs as much as a small operation's copy
  Clock::time_point ended{};  // only when timed
  // Run under the lock after success, before anybody sees it done: unpacks into tensors that are not contiguous. Mostly empty.
  std::function<void()> epilogue;

  // Marks it done with `status`, and hands back what must be run and destroyed outside of the engine's lock.
  struct Completion {
    std::shared_ptr<Activity> activity;
    std::shared_ptr<void> keepAlive;
    Status status;
  };
  Completion complete(Status status);
  // Whether runCallbacks would call anything.
  bool hasCallbacks() const {
    const Callback* newest = callbacks_.load(std::memory_order_acquire);
    return newest != nullptr && newest != kCalled;
  }
  // Runs the callbacks given to onDone. Not under any lock.
  void runCallbacks(const Status& status);
  // It was never taken: nobody waits for it, and its pool may have it back.
  void abandon() { done_.store(true, std::memory_order_release); }
  // The engine that steps it; called when it is taken.
  void setEngine(Engine& engine);

 protected:
  // Makes a finished activity ready for another run (pooled runs).
  void reuse();
  // Valid while the activity is in flight.
  Engine& engine() const { return *engine_; }

 private:
  struct Callback {
    std::function<void(const Status&)> call;
    Callback* next = nullptr;
  };
  static Callback* const kCalled;

  std::atomic<bool> done_{false};              // release pairs with isDone's acquire: status_ and outputs are visible to whoever sees true
  std::atomic<Callback*> callbacks_{nullptr};  // newest first; kCalled once they were run. acq_rel: whoever takes them sees their captures
  Engine* engine_ = nullptr;
  std::weak_ptr<Engine> weakEngine_;  // of a waiter who must outlive the group's end; set before the Work is handed out
  Status status_;
};

}  // namespace shardwire::internal
