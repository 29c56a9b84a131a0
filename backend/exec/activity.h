// One operation in flight inside the engine, and the Work that its caller holds. The engine steps it under its lock; callers use the Work
// side from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/exec/frame.h"
#include "backend/exec/run_context.h"
#include "shardwire/work.h"

namespace shardwire::internal {

// Who moves operations along for callers who wait for them: the engine. Any thread.
class Driver {
 public:
  // Work::wait of an operation in flight.
  virtual Status waitFor(Activity& activity, Deadline until) = 0;

 protected:
  ~Driver() = default;
};

// What operation this is, for messages: "all_reduce(float32[1024], sum)". Shared, so that a run copies no text.
using Description = std::shared_ptr<const std::string>;

// What one operation moves between this rank and a peer.
struct EdgeBytes {
  std::uint64_t sends = 0;
  std::uint64_t receives = 0;
};

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
  virtual bool step(std::vector<bool>& blockedBulk) = 0;
  // Control frames of this operation. Not ok: it has no use for such a frame, and the peer is broken.
  virtual Status onPost(Rank from, const Received<PostFrame>& frame);
  virtual Status onAck(Rank from, const Received<AckFrame>& frame);
  virtual Status onBlob(Rank from, const Received<BlobFrame>& frame);
  virtual Status onCancel(Rank from, const Received<CancelFrame>& frame);
  // Nothing is left to do.
  virtual bool finished() const = 0;
  // Whether the operation cannot end without more from this peer.
  virtual bool needs(Rank peer) const = 0;
  // Whether it needs this peer, and has heard nothing of it so far. Where an operation cannot know that: whether it needs the peer.
  virtual bool misses(Rank peer) const { return needs(peer); }
  // For messages: "rank 2 did not arrive".
  virtual std::string waitingFor() const = 0;
  // True: a timeout of this operation leaves the group usable (compileOp), because no tensor was touched.
  virtual bool cancellable() const { return false; }
  // True: what is left of it may go on when its timeout has passed, and nobody waits for that.
  virtual bool outlivesTimeout() const { return false; }
  // It is cancelled: what it left with others than the engine.
  virtual void giveUp() {}
  // What it moves between this rank and the peer. Zeroes where that is not known before it was moved.
  virtual EdgeBytes edgeBytes(Rank) const { return {}; }
  // The same for all peers at once: added to `byPeer`, when it is over.
  virtual void addTraffic(std::span<EdgeBytes> byPeer) const { static_cast<void>(byPeer); }
  // As sourceRank(), under the lock, also while it is not done.
  virtual Rank matchedRank() const { return -1; }
  // For a frame that makes no sense in this operation.
  virtual Status misfit(Rank from, FrameKind kind) const;
  // Ordered operations carry a sequence number and a fingerprint in every frame.
  virtual bool ordered() const { return true; }

  // What it runs over. Valid while it is in flight.
  RunContext& context() const { return *context_; }
  OperationTag tag() const { return {seq, fingerprint}; }

  // Set by the engine when it takes the activity; reset by reuse().
  std::uint64_t seq = 0;   // of this activity, equal on all ranks
  std::uint64_t call = 0;  // the user's call that it is part of: what people read. Equal on all ranks; 0 for messages
  std::uint64_t fingerprint = 0;
  Deadline deadline = kNoDeadline;
  Duration timeout{0};
  Clock::time_point started{};  // zero when it was over before anybody looked at the clock, unless `timed`
  Description description;
  std::shared_ptr<void> keepAlive;
  bool hasAskedPeers = false;  // about to expire: those it waits for were asked what they do
  bool mayLackLinks = false;   // a peer that it needs was not joined when it was taken
  bool timed = false;          // wants `started` and `ended` in any case: reading the clock costs as much as a small operation's copy
  Clock::time_point ended{};   // only when timed
  std::uint64_t record =
      0;  // its number in the flight recorder (OpRecorder); 0: it is not recorded, or by another activity of its operation
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
  // Runs all callbacks given to onDone, whatever one of them throws (callUser). Not under any lock.
  void runCallbacks(const Status& status);
  // It was never taken: nobody waits for it, and its pool may have it back.
  void abandon() { done_.store(true, std::memory_order_release); }
  // It is taken: whose links it runs over, and who moves it along. Both stay the same for all runs of one activity.
  bool isIn(const RunContext& context) const { return context_ == &context; }
  void enter(RunContext& context, const std::weak_ptr<Driver>& driver);

 protected:
  // Makes a finished activity ready for another run (pooled runs).
  void reuse();

 private:
  struct Callback {
    std::function<void(const Status&)> call;
    Callback* next = nullptr;
  };
  static Callback* const kCalled;

  std::atomic<bool> done_{false};              // release pairs with isDone's acquire: status_ and outputs are visible to whoever sees true
  std::atomic<Callback*> callbacks_{nullptr};  // newest first; kCalled once they were run. acq_rel: whoever takes them sees their captures
  RunContext* context_ = nullptr;
  std::weak_ptr<Driver> driver_;  // of a waiter who must outlive the group's end; set before the Work is handed out
  Status status_;
};

}  // namespace shardwire::internal
