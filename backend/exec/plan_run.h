// One run of a Plan over given tensors: the sends, the receives, the own copies and the combines, each with a separate
// state. Resumable: step() moves on as far as possible. Pooled by the owner, so a re-run allocates nothing. Stepped
// under the group's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/exec/combiner.h"
#include "backend/exec/pins.h"
#include "backend/exec/read_or_stage.h"
#include "backend/exec/receive_edge.h"
#include "backend/exec/remote_reads.h"
#include "backend/exec/run.h"
#include "backend/exec/run_scope.h"
#include "backend/exec/send_edge.h"
#include "ops/plan/plan.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

class PlanRun final : public Run {
 public:
  // The plan outlives the run through `plan`.
  explicit PlanRun(std::shared_ptr<const Plan> plan);

  void prepare(std::span<const TensorView> inputs, std::span<const TensorView> outputs) override;
  // Same views as last time.
  void prepareAgain();

  bool step(std::vector<bool>& blockedBulk) override;
  Status onPost(Rank from, const Received<PostFrame>& frame) override;
  Status onAck(Rank from, const Received<AckFrame>& frame) override;
  bool needs(Rank peer) const override;
  Duration worthSpinning() const override { return staging_ == nullptr ? worthSpinning_ : Duration::zero(); }

  // Tensors stay pinned from run to run (prepareAgain), until keepPins(false). Under the group's lock.
  void keepPins(bool keeps);

 private:
  void chooseSpin();
  void noteMoves();
  void pinTensors();
  void chooseWay();
  void noteWay();
  bool stepOwnCopies();
  bool isOver() const;
  bool isOpen(Rank peer) const override;
  void announceWrites(Staging& staging) const override;
  bool hasArrivedFrom(Rank peer) const override;

  RunScope scope_;
  RemoteReads reads_;
  std::vector<SendEdge> sends_;            // by Plan::sends
  std::vector<ReceiveEdge> receives_;      // by Plan::receives
  std::vector<SendEdge*> sendTo_;          // by peer; null when no edge goes to the peer
  std::vector<ReceiveEdge*> receiveFrom_;  // by peer; null when no edge comes from the peer
  Combiner combiner_;
  Duration worthSpinning_{0};
  Pins pins_;
  bool isPinned_ = false;
  bool keepsPins_ = false;
  bool hasStepped_ = false;
  ReadOrStage measured_;         // reads across memories, or staging, for the edges between two ranks of a host
  Clock::time_point startedAt_;  // this run's first step; not set while no edge has a measured way
  std::uint32_t ownCopy_ = 0;    // next own copy
  SegmentCursor cursor_;         // of the own copy
  bool cursorOpen_ = false;
};

}  // namespace shardwire::internal
