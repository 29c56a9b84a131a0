// One run of a Plan over given tensors, whichever way it is executed. Pooled: prepare() makes it ready for another run.
#pragma once

#include <algorithm>
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
  // Makes the run ready: views as the plan wants them. Outputs may share memory with inputs as far as no move writes what is sent or what
  // another move reads (checked by the caller).
  virtual void prepare(std::span<const TensorView> inputs, std::span<const TensorView> outputs) = 0;
  // After prepare(): this is the next stage of the operation whose last stage so far is `previous`, and is done only after it.
  // `startsAfter`: moves nothing before `previous` is done either.
  void follow(std::shared_ptr<Activity> previous, bool startsAfter) {
    previous_ = std::move(previous);
    startsAfter_ = startsAfter;
    gate_ = nullptr;
  }
  // After prepare() and follow(): moves nothing before the gate opens.
  void startAfter(std::shared_ptr<StartGate> gate) { gate_ = std::move(gate); }
  // After prepare(): tensors among the views are host copies, touched as far as they are ready. null: none are.
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
    previous_.reset();  // back to its pool
    return true;
  }
  // For how long the caller should poll before it goes: about as long as the run takes when all ranks are there; 0 when that is long.
  // A caller who goes at once arms the doorbell, and ringing it costs the peer 5 us.
  virtual Duration worthSpinning() const = 0;

  bool misses(Rank peer) const override { return gate_ == nullptr && isOpen(peer) && !heardFrom(peer); }
  // By what each peer still owes and what it sent: "ranks 2, 3 did not arrive; rank 1 arrived but did not finish".
  std::string waitingFor() const override;

 protected:
  // Whether frames of this run, or of later ones, came from the peer.
  virtual bool heardFrom(Rank peer) const;
  // Whether this run has to do with the peer and is not done with it.
  virtual bool isOpen(Rank peer) const { return needs(peer); }
  // What the peer sent and we did not take yet, because another rank's part comes first, may be all that is missing.
  bool hasSentItsPart(Rank peer) const;
  static EdgeBytes edgeBytesOf(const Plan& plan, Rank peer);
  static void addTrafficOf(const Plan& plan, std::span<EdgeBytes> byPeer);
  // For a run that only sends, and would be over without hearing from anybody: whether a peer sent what no operation here takes. The run
  // waits then, since the ranks disagree and will be told so.
  template <typename Edges>
  bool isOutOfStep(const Edges& sends) const {
    bool isOut = false;
    for (const auto& edge : sends) {
      isOut |= context().refuseStale(edge.peer);
    }
    return isOut;
  }
  // True while the run before is in flight, or what the gate waits for. Later operations must not pass: their frames would lie before ours
  // in the peers' rings, where a peer that first waits for this operation never comes to ours.
  template <typename Edges>
  bool mustWait(const Edges& sends, std::vector<bool>& blockedBulk) {
    if (gate_ != nullptr && gate_->isOpen()) {
      if (!gate_->failure().isOk()) {
        context().fail(gate_->failure());
        return true;
      }
      gate_ = nullptr;
      context().begin(*this);
    }
    if (gate_ == nullptr && (!startsAfter_ || previous_ == nullptr || previous_->isDone())) {
      return false;
    }
    holdBack(sends, blockedBulk);
    return true;
  }
  // Later operations send nothing where this one still will.
  template <typename Edges>
  static void holdBack(const Edges& sends, std::vector<bool>& blockedBulk) {
    for (const auto& edge : sends) {
      blockedBulk[static_cast<std::size_t>(edge.peer)] = true;
    }
  }

  // Every byte that the run will write, to `staging`.
  virtual void announceWrites(Staging& staging) const = 0;

  int worldSize_ = 1;
  bool finished_ = false;       // all of this run is done
  Staging* staging_ = nullptr;  // lives as long as the operation's keepAlive; null: every tensor is the host's own

 private:
  mutable std::shared_ptr<Activity> previous_;
  bool startsAfter_ = false;
  std::shared_ptr<StartGate> gate_;  // mostly null
};

// Finished runs wait here for the next one, so that a re-run allocates nothing. Make(): a new run. Thread-safe through its owner.
template <typename T>
class RunPool {
 public:
  // A run that nobody else holds; made when all are in flight or still held by a caller.
  template <typename Make>
  std::shared_ptr<T> take(Make&& make, bool* isNew = nullptr) {
    const auto found = std::find_if(runs_.begin(), runs_.end(), [](const auto& run) { return run.use_count() == 1 && run->isDone(); });
    if (isNew != nullptr) {
      *isNew = found == runs_.end();
    }
    return found != runs_.end() ? *found : runs_.emplace_back(make());
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
