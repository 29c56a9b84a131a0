// One operation in flight inside the engine, and the Work in the caller's hands. The engine steps the activity under
// the engine's lock; callers use the Work side from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/exec/description.h"
#include "backend/exec/frame.h"
#include "backend/exec/run_context.h"
#include "shardwire/work.h"

namespace shardwire::internal {

// Moves operations along for waiting callers: the engine. Any thread.
class Driver {
 public:
  // Work::wait of an operation in flight.
  virtual Status waitFor(Activity& activity, Deadline until) = 0;
  // Threads in waitFor() look again whether their activity is done.
  virtual void wakeWaiters() = 0;

 protected:
  ~Driver() = default;
};

// For Activity::timeout. An operation with a timeout of 0 ends at the first look at the clock.
inline Duration timeoutOf(std::optional<Duration> given) {
  return given.has_value() ? std::max(*given, Duration{1}) : Duration::zero();
}

// The bytes of one operation between this rank and a peer.
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
  Status status() const override { return isDone() ? status_ : Status::ok(); }
  void onDone(std::function<void(const Status&)> callback) override { add(new Callback{std::move(callback), true}); }
  // As onDone(). The callback waits for nothing, so the calling thread need not let another thread drive meanwhile.
  void onDoneWithoutWait(std::function<void(const Status&)> callback) { add(new Callback{std::move(callback), false}); }

  // The rest is the engine's, and runs under the engine's lock.

  // Moves on as far as possible without waiting; true when anything moved. `blockedBulk[peer]` is set while an earlier
  // operation still has staged bytes for this peer; an operation with staged bytes left sets the flag.
  virtual bool step(std::vector<bool>& blockedBulk) = 0;
  // Before the engine takes the operation, while nothing else is in flight: moves the whole operation inside its call,
  // with at most `polls` looks for the peers' frames. False: the engine has to take the operation, and step() goes on.
  virtual bool moveNow(int /*polls*/) { return false; }
  // Control frames of this operation. Not ok: the operation has no use for the frame, and the peer is broken.
  virtual Status onPost(Rank from, const Received<PostFrame>&) { return misfit(from, FrameKind::kPost); }
  virtual Status onAck(Rank from, const Received<AckFrame>&) { return misfit(from, FrameKind::kAck); }
  virtual Status onBlob(Rank from, const Received<BlobFrame>&) { return misfit(from, FrameKind::kBlob); }
  virtual Status onCancel(Rank from, const Received<CancelFrame>&) { return misfit(from, FrameKind::kCancel); }
  // Nothing is left to do.
  virtual bool finished() const = 0;
  // Whether the operation cannot end without more from this peer.
  virtual bool needs(Rank peer) const = 0;
  // Whether the operation needs this peer, and has received nothing from the peer so far. If an operation cannot know
  // this: whether the operation needs the peer.
  virtual bool misses(Rank peer) const { return needs(peer); }
  // Waits for a message of whichever rank: nothing can come once all peers are gone.
  virtual bool needsSomePeer() const { return false; }
  // For messages: "rank 2 did not arrive".
  virtual std::string waitingFor() const = 0;
  // The earlier operation that must be over before this one starts; null: this one has started, or may start.
  virtual const Activity* heldBackBy() const { return nullptr; }
  // True: a timeout of this operation leaves the group usable (compileOp), because no tensor was touched.
  virtual bool cancellable() const { return false; }
  // No caller learns of a timeout: a message that nobody must take.
  bool mayLapse() const { return !ordered() && cancellable(); }
  // True: the rest of the operation may go on after the timeout, and no caller waits for the rest.
  virtual bool outlivesTimeout() const { return false; }
  // The operation is cancelled: removes the operation from lists outside of the engine.
  virtual void giveUp() {}
  // The bytes of the operation between this rank and the peer. Zeroes where the number is unknown before the bytes
  // move.
  virtual EdgeBytes edgeBytes(Rank) const { return {}; }
  // Adds edgeBytes() of all peers to `byPeer`, when the operation is over.
  virtual void addTraffic(std::span<EdgeBytes> /*byPeer*/) const {}
  // As sourceRank(), under the lock, also before the operation is done.
  virtual Rank matchedRank() const { return -1; }
  // The error for a frame without a meaning in this operation.
  virtual Status misfit(Rank from, FrameKind kind) const;
  // Ordered operations carry a sequence number and a fingerprint in every frame.
  virtual bool ordered() const { return true; }

  // The group of the operation. Valid while the operation is in flight.
  // Releases the earlier operations that this failed operation waited for. Else thousands of operations over one tensor
  // would hold each other, and be destroyed by recursion.
  virtual void forgetEarlier() {}
  RunContext& context() const { return *context_; }
  OperationTag tag() const { return {seq, fingerprint}; }

  // Set by the engine when the engine takes the activity; reset by reuse().
  std::uint64_t seq = 0;  // of this activity, equal on all ranks
  // The user's call of which this activity is a part, as shown to people. Equal on all ranks; 0 for messages.
  std::uint64_t call = 0;
  std::uint64_t fingerprint = 0;
  Deadline deadline = kNoDeadline;
  Duration timeout{0};          // 0: the group's; see timeoutOf()
  Clock::time_point started{};  // zero when the operation was over before the first look at the clock, unless `timed`
  Description description;
  std::shared_ptr<void> keepAlive;
  Clock::time_point askedPeersAt{};  // about to expire: the needed peers were asked what they do; zero: not asked
  Duration noticeAfter{0};           // the wait until the next line of log about this operation; zero: not chosen
  bool mayLackLinks = false;         // a needed peer was not joined when the engine took the activity
  bool isInCall = false;             // the call that started the operation has not returned: see endInCall()
  bool timed =
      false;  // wants `started` and `ended` in any case: reading the clock costs as much as a small operation's copy
  Clock::time_point ended{};  // only when timed
  std::uint64_t record =
      0;  // number in the flight recorder (OpRecorder); 0: not recorded, or recorded by another activity of the call
  // Runs under the lock after success, before callers see the activity as done: unpacks into non-contiguous
  // tensors. Mostly empty.
  std::function<void()> epilogue;

  // Marks the activity as done with `status`, and returns the objects to be called and destroyed outside of the
  // engine's lock.
  struct Completion {
    std::shared_ptr<Activity> activity;
    std::shared_ptr<void> keepAlive;
  };
  static Completion complete(std::shared_ptr<Activity> activity, Status status);
  // complete() for an operation that ends inside its call (isInCall): no caller has the operation yet, so no thread
  // waits for it, and keepAlive, which stays, is the call's to release. False, with no effect, when a callback was set
  // before the call.
  bool endInCall(Status& status);
  bool mayEndInCall() const { return callbacks_.load(std::memory_order_relaxed) == nullptr; }
  // Closes the list of callbacks for runCallbacks(): a later callback runs at once, on the thread that adds the
  // callback. True: a callback of the list may wait for another operation. The activity is done.
  bool closeCallbacks();
  // Runs all callbacks of the list, even if one callback throws (callUser). Not under any lock. Closes the list before.
  void runCallbacks();
  // Whether this thread is inside a callback of any operation.
  static bool isInCallback();
  // The activity was never taken: no caller waits, and the pool may use the activity again.
  void abandon() { done_.store(true, std::memory_order_release); }
  // The engine takes the activity: sets the group and the driver. Both stay the same for all runs of one activity.
  bool isIn(const RunContext& context) const { return context_ == &context; }
  void enter(RunContext& context, const std::weak_ptr<Driver>& driver);
  // Lets `other`, which no engine takes, be waited for like this activity, which an engine has taken: a waiter drives
  // this activity's group.
  void lendDriver(Activity& other) const { other.enter(*context_, driver_); }
  // After complete() of an activity that no engine has taken.
  void wakeWaiters() const {
    if (const std::shared_ptr<Driver> driver = driver_.lock()) {
      driver->wakeWaiters();
    }
  }

 protected:
  // Makes a finished activity ready for another run (pooled runs).
  void reuse();

 private:
  struct Callback {
    std::function<void(const Status&)> call;
    bool mayWait = true;
    Callback* next = nullptr;
  };
  static Callback* const kCalled;
  void add(Callback* added);
  void invoke(const Callback& callback);
  // The part of complete() before and including the mark.
  void markDone(Status& status);

  // release pairs with isDone's acquire: status_ and outputs are visible to a thread after the thread sees true.
  std::atomic<bool> done_{false};
  // Newest first; kCalled once the list is closed. acq_rel: the thread taking the callbacks sees the captures.
  std::atomic<Callback*> callbacks_{nullptr};
  Callback* closed_ = nullptr;  // oldest first; from closeCallbacks() to runCallbacks()
  RunContext* context_ = nullptr;
  std::weak_ptr<Driver> driver_;  // weak, because a waiter may outlive the group; set before the Work is handed out
  Status status_;
};

}  // namespace shardwire::internal
