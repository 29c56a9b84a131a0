// One run of a Plan over given tensors, executed as a PlanRun or a ShortRun. Pooled: prepare() makes the run ready for
// the next execution.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/exec/activity.h"
#include "backend/exec/start_gate.h"
#include "ops/plan/plan.h"
#include "shardwire/staging.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// Covers a peer that is some microseconds late.
inline constexpr Duration kShortSpin = std::chrono::microseconds(20);

class Run : public Activity {
 public:
  explicit Run(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) { fingerprint = plan_->fingerprint; }

  // Makes the run ready: views as in the plan. Outputs may share memory with inputs where no move writes bytes to be
  // sent or to be read by another move (checked by the caller).
  virtual void prepare(std::span<const TensorView> inputs, std::span<const TensorView> outputs) = 0;
  // After prepare(): this run is the next stage of the operation whose last stage so far is `previous`, and is done
  // only after `previous`. `startsAfter`: moves nothing before `previous` is done either.
  void follow(std::shared_ptr<Activity> previous, bool startsAfter) {
    previous_ = std::move(previous);
    startsAfter_ = startsAfter;
    gate_ = nullptr;
  }
  // follow() of a run that is the first stage, which it mostly is already.
  void followNothing() {
    if (previous_ != nullptr || gate_ != nullptr) {
      follow(nullptr, false);
    }
    startsAfter_ = false;
  }
  // After prepare() and follow(): moves nothing before the gate opens.
  void startAfter(std::shared_ptr<StartGate> gate) { gate_ = std::move(gate); }
  // After prepare(): some tensors among the views are host copies, and the run touches only bytes that are ready. null:
  // no tensor is a host copy.
  void stage(Staging* staging) {
    staging_ = staging;
    if (staging != nullptr) {
      announceWrites(*staging);
    }
  }
  bool finished() const final {
    if (!finished_ || (previous_ != nullptr && !previous_->isDone())) {
      return false;
    }
    previous_.reset();  // returns the run to its pool
    return true;
  }
  // The time for the caller to poll before returning: about the duration of the run when all ranks are there; 0 when
  // the run is long. A caller that returns at once arms the doorbell, and ringing the doorbell costs the peer 5 us.
  virtual Duration worthSpinning() const = 0;

  EdgeBytes edgeBytes(Rank peer) const override;
  void addTraffic(std::span<EdgeBytes> byPeer) const override;
  bool misses(Rank peer) const override { return gate_ == nullptr && isOpen(peer) && !hasArrivedFrom(peer); }
  // Distinguishes the peers by their missing part and their frames so far: "ranks 2, 3 did not arrive; rank 1 arrived
  // but did not finish".
  std::string waitingFor() const override;
  void forgetEarlier() final {
    previous_ = nullptr;
    gate_ = nullptr;
  }
  const Activity* heldBackBy() const override { return gate_ == nullptr ? nullptr : gate_->firstOpen(); }

 protected:
  // Whether frames of this run, or of later runs, came from the peer.
  virtual bool hasArrivedFrom(Rank peer) const;
  // Whether this run exchanges bytes with the peer and is not done with the peer.
  virtual bool isOpen(Rank peer) const { return needs(peer); }
  // True when bytes of the peer lie in the lane untaken, because another rank's part comes first: perhaps nothing else
  // is missing.
  bool hasSentItsPart(Rank peer) const;
  // For a run that only sends, and would end without a frame from any peer: whether a peer sent bytes that no operation
  // here takes. Then the run waits, since the ranks disagree and will be notified.
  bool isOutOfStep() const {
    bool isOut = false;
    for (const PlanEdge& edge : plan_->sends) {
      isOut |= !context().connection(edge.peer).peek(Lane::kBulk).empty() && context().refuseStale(edge.peer);
    }
    return isOut;
  }
  // True while the previous run is in flight, or the gate is closed. Later operations must not pass: their frames would
  // lie before the frames of this run in the peers' rings, and a peer that first waits for this operation would never
  // get to these frames.
  bool mustWait(std::vector<bool>& blockedBulk) {
    if ((gate_ == nullptr && !startsAfter_) || !isHeldBack()) {
      return false;
    }
    holdBack(blockedBulk);
    return true;
  }
  // Later operations send nothing to peers for which this run still has bytes.
  void holdBack(std::vector<bool>& blockedBulk) const;

  // Announces to `staging` every byte to be written by the run.
  virtual void announceWrites(Staging& staging) const = 0;

  // For mustWait(): looks at the gate and at the previous run.
  bool isHeldBack();

  const std::shared_ptr<const Plan> plan_;
  bool finished_ = false;       // all of this run is done
  Staging* staging_ = nullptr;  // lives as long as the operation's keepAlive; null: every tensor is the host's own

 private:
  mutable std::shared_ptr<Activity> previous_;
  bool startsAfter_ = false;
  std::shared_ptr<StartGate> gate_;  // mostly null
};

// Finished runs wait here for reuse, so a re-run allocates nothing. Make(): a new run. Thread-safe through the owner.
template <typename T>
class RunPool {
 public:
  // A run without another holder; a new run, and true in `isNew`, when all runs are in flight or still held by a
  // caller. The reference holds until the next call.
  template <typename Make>
  const std::shared_ptr<T>& take(Make&& make, bool* isNew = nullptr) {
    for (const std::shared_ptr<T>& run : runs_) {
      if (run.use_count() == 1 && run->isDone()) {
        return run;
      }
    }
    if (isNew != nullptr) {
      *isNew = true;
    }
    return runs_.emplace_back(make());
  }

  template <typename Visit>
  void forEach(Visit&& visit) const {
    for (const auto& run : runs_) {
      visit(*run);
    }
  }

 private:
  std::vector<std::shared_ptr<T>> runs_;
};

}  // namespace shardwire::internal
