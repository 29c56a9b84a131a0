// One run of a plan in which every edge fits one frame and every box is flat: the short collectives. Same plans, same
// frames and same results as PlanRun, without the parts that only large or strided tensors need: nothing is posted, cut
// or acknowledged. Everything is sent before anything is written, so outputs may be inputs, even inputs for other
// ranks. Pooled by the owner, so that a re-run allocates nothing. Stepped under the engine's lock.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/exec/run.h"
#include "ops/plan/plan.h"

namespace shardwire::internal {

class ShortRun final : public Run {
 public:
  // True when every edge has at most `shortBytes`, every tensor has one dimension, and nothing is cast. The result may
  // differ between the two ends of an edge: the frames are alike.
  static bool fits(const Plan& plan, std::size_t shortBytes);

  // Precondition: fits(*plan, the group's short bytes).
  explicit ShortRun(std::shared_ptr<const Plan> plan);

  void prepare(std::span<const TensorView> inputs, std::span<const TensorView> outputs) override;
  // As prepare(): the caller sets the addresses of the plan's tensors, and this run is no later stage.
  struct Addresses {
    std::span<std::byte*> inputs;
    std::span<std::byte*> outputs;
  };
  Addresses restart();
  bool step(std::vector<bool>& blockedBulk) override;
  bool moveNow(int polls) override;
  bool needs(Rank peer) const override;
  Duration worthSpinning() const override { return kShortSpin; }

 private:
  // Bytes of one input, in the order of the frame.
  struct Piece {
    std::int32_t input = 0;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  struct Send {
    Rank peer = 0;
    std::uint32_t firstPiece = 0;
    std::uint32_t numPieces = 0;
    std::size_t bytes = 0;
    bool done = false;
  };
  struct Receive {
    Rank peer = 0;
    std::size_t bytes = 0;
    std::span<const std::byte> payload;
    bool here = false;
  };
  struct Source {
    std::int32_t receive = -1;  // index into receives_; -1: this rank's own input
    std::int32_t input = 0;     // of this rank
    std::size_t offset = 0;     // in the input, or in the payload
  };
  struct Move {
    std::int32_t output = 0;
    std::size_t offset = 0;
    std::size_t numElems = 0;
    std::size_t bytes = 0;
    DType dtype = DType::kFloat32;
    ReduceOp reduction = ReduceOp::kNone;
    std::uint32_t firstSource = 0;
    std::uint32_t numSources = 1;
  };

  Status misfit(Rank from, FrameKind kind) const override;
  void announceWrites(Staging& staging) const override;
  void addMove(const PlanMove& move, std::vector<std::size_t>& taken);
  bool send(RunContext& context, Send& edge);
  bool receive(RunContext& context, Receive& edge);
  // Takes the frames that are here. With the last frame the run moves everything and is over. True when anything moved.
  bool receiveAll(RunContext& context);
  const std::byte* addressOf(const Source& source) const;
  void move();

  std::vector<Send> sends_;
  std::vector<Piece> pieces_;
  std::vector<Receive> receives_;
  std::vector<Source> sources_;
  std::vector<Move> moves_;
  std::vector<std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<const std::byte*> addresses_;  // of one move's sources
  std::size_t numSent_ = 0;
  std::size_t numHere_ = 0;
};

}  // namespace shardwire::internal
