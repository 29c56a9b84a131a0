// A short operation is one frame to each peer and one frame from each. All frames are sent first, before anything is
// written, so that outputs may be inputs. Then each peer's frame is noted in place in the lane. When the last frame
// is there, all moves run at once, over flat memory, straight out of the frames, and the frames are released.
// Nothing is posted, cut or acknowledged: the constructor works out every offset. The frames equal the frames of a
// PlanRun for such an edge, so that one end may run a ShortRun and the other end a PlanRun. moveNow() does all of
// this inside the call, where the peers' frames come within a moment.
#include "backend/exec/short_run.h"

#include <algorithm>

#include "backend/base/copy_few.h"
#include "backend/base/relax.h"
#include "ops/boxes/reduce_box.h"

namespace shardwire::internal {

bool ShortRun::fits(const Plan& plan, std::size_t shortBytes) {
  const auto isShort = [&](const PlanEdge& edge) { return edge.bytes <= shortBytes; };
  const auto isFlat = [](const PlanTensor& tensor) { return tensor.shape.size() == 1; };
  const auto isCast = [&](const PlanMove& move) { return move.sourceDtype != outputDtypeOf(plan, move); };
  const auto isNarrowed = [&](const PlanSendItem& item) {
    return item.stagedDtype != plan.inputs[static_cast<std::size_t>(item.input)].dtype;
  };
  return std::none_of(plan.moves.begin(), plan.moves.end(), isCast) &&
         std::none_of(plan.sendItems.begin(), plan.sendItems.end(), isNarrowed) &&
         std::all_of(plan.sends.begin(), plan.sends.end(), isShort) &&
         std::all_of(plan.receives.begin(), plan.receives.end(), isShort) &&
         std::all_of(plan.inputs.begin(), plan.inputs.end(), isFlat) &&
         std::all_of(plan.outputs.begin(), plan.outputs.end(), isFlat);
}

ShortRun::ShortRun(std::shared_ptr<const Plan> plan) : Run(std::move(plan)) {
  for (const PlanEdge& edge : plan_->sends) {
    sends_.push_back({edge.peer, static_cast<std::uint32_t>(pieces_.size()), edge.count, edge.bytes, false});
    for (std::uint32_t i = 0; i < edge.count; ++i) {
      const PlanSendItem& item = plan_->sendItems[edge.first + i];
      const std::size_t elemBytes = elementBytes(plan_->inputs[static_cast<std::size_t>(item.input)].dtype);
      pieces_.push_back({item.input, static_cast<std::size_t>(item.offset[0]) * elemBytes,
                         static_cast<std::size_t>(item.shape[0]) * elemBytes});
    }
  }
  for (const PlanEdge& edge : plan_->receives) {
    receives_.push_back({edge.peer, edge.bytes, {}, false});
  }
  // A peer's payload holds the bytes for this rank in the order of this rank's moves: the plan's contract.
  std::vector<std::size_t> taken(receives_.size());
  for (const PlanMove& move : plan_->moves) {
    addMove(move, taken);
  }
  std::uint32_t most = 0;
  for (const Move& move : moves_) {
    most = std::max(most, move.numSources);
  }
  addresses_.resize(most);
  inputs_.resize(plan_->inputs.size());
  outputs_.resize(plan_->outputs.size());
}

void ShortRun::addMove(const PlanMove& move, std::vector<std::size_t>& taken) {
  const DType dtype = plan_->outputs[static_cast<std::size_t>(move.output)].dtype;
  const std::size_t elemBytes = elementBytes(dtype);
  const auto numElems = static_cast<std::size_t>(move.shape[0]);
  moves_.push_back({move.output, static_cast<std::size_t>(move.offset[0]) * elemBytes, numElems, numElems * elemBytes,
                    dtype, move.reduction, static_cast<std::uint32_t>(sources_.size()), move.numSources});
  for (std::uint32_t i = 0; i < move.numSources; ++i) {
    const PlanSource& source = plan_->sources[move.firstSource + i];
    if (source.rank == plan_->rank) {
      sources_.push_back({-1, source.input, static_cast<std::size_t>(source.offset[0]) * elemBytes});
      continue;
    }
    const auto edge =
        std::find_if(receives_.begin(), receives_.end(), [&](const Receive& r) { return r.peer == source.rank; });
    const auto index = static_cast<std::size_t>(edge - receives_.begin());
    sources_.push_back({static_cast<std::int32_t>(index), 0, taken[index]});
    taken[index] += numElems * elemBytes;
  }
}

void ShortRun::prepare(std::span<const TensorView> inputs, std::span<const TensorView> outputs) {
  const Addresses addresses = restart();
  std::ranges::transform(inputs, addresses.inputs.begin(), &TensorView::bytes);
  std::ranges::transform(outputs, addresses.outputs.begin(), &TensorView::bytes);
}

ShortRun::Addresses ShortRun::restart() {
  reuse();
  followNothing();
  stage(nullptr);
  for (Send& edge : sends_) {
    edge.done = false;
  }
  for (Receive& edge : receives_) {
    edge.here = false;
    edge.payload = {};
  }
  numSent_ = numHere_ = 0;
  finished_ = false;
  return {inputs_, outputs_};
}

bool ShortRun::step(std::vector<bool>& blockedBulk) {
  RunContext& context = this->context();
  if (finished_ || mustWait(blockedBulk)) {
    return false;
  }
  if (staging_ != nullptr && !staging_->allReady()) {
    holdBack(blockedBulk);
    return false;
  }
  bool moved = false;
  if (receives_.empty() && numSent_ == 0 && isOutOfStep()) {
    return false;
  }
  for (std::size_t i = 0; i < sends_.size() && numSent_ < sends_.size(); ++i) {
    std::vector<bool>::reference blocked = blockedBulk[static_cast<std::size_t>(sends_[i].peer)];
    if (sends_[i].done) {
      continue;
    }
    if (blocked || !send(context, sends_[i])) {
      blocked = true;
    } else {
      moved = true;
    }
  }
  if (numSent_ < sends_.size()) {
    return moved;
  }
  return receiveAll(context) || moved;
}

bool ShortRun::moveNow(int polls) {
  RunContext& context = this->context();
  if (staging_ != nullptr || isHeldBack() || (receives_.empty() && isOutOfStep())) {
    return false;
  }
  for (Send& edge : sends_) {
    if (!send(context, edge)) {
      return false;
    }
  }
  for (receiveAll(context); !finished_; receiveAll(context)) {
    if (--polls <= 0) {
      return false;
    }
    relax();
  }
  return finished();
}

bool ShortRun::receiveAll(RunContext& context) {
  bool moved = false;
  for (Receive& edge : receives_) {
    moved |= !edge.here && receive(context, edge);
  }
  if (numHere_ < receives_.size()) {
    return moved;
  }
  move();
  for (Receive& edge : receives_) {
    context.releaseBulk(edge.peer);
  }
  finished_ = true;
  return true;
}

bool ShortRun::send(RunContext& context, Send& edge) {
  Connection& connection = context.connection(edge.peer);
  const std::size_t frameBytes = kHeadBytes<StagedFrame> + edge.bytes;
  const auto frame = connection.reserve(Lane::kBulk, frameBytes, frameBytes);
  if (frame.empty()) {
    return false;
  }
  writeFrame(
      frame,
      StagedFrame{.operation = tag(), .segmentBytes = static_cast<std::uint32_t>(context.segmentBytes), .isAll = 1},
      edge.bytes);
  std::byte* out = frame.data() + kHeadBytes<StagedFrame>;
  for (std::uint32_t i = 0; i < edge.numPieces; ++i) {
    const Piece& piece = pieces_[edge.firstPiece + i];
    copyFew(out, inputs_[static_cast<std::size_t>(piece.input)] + piece.offset, piece.bytes);
    out += piece.bytes;
  }
  context.commitBulk(edge.peer, frameBytes);
  edge.done = true;
  ++numSent_;
  return true;
}

bool ShortRun::receive(RunContext& context, Receive& edge) {
  const auto staged = context.nextStaged(edge.peer, tag());
  if (!staged.has_value()) {
    return false;
  }
  if (staged->isAll == 0 || staged->payload.size() != edge.bytes) {
    context.desync(edge.peer, seq);  // the same call with another size
    return false;
  }
  edge.payload = staged->payload;
  edge.here = true;
  ++numHere_;
  return true;
}

const std::byte* ShortRun::addressOf(const Source& source) const {
  const std::byte* base = source.receive < 0 ? inputs_[static_cast<std::size_t>(source.input)]
                                             : receives_[static_cast<std::size_t>(source.receive)].payload.data();
  return base + source.offset;
}

void ShortRun::move() {
  for (const Move& move : moves_) {
    std::byte* out = outputs_[static_cast<std::size_t>(move.output)] + move.offset;
    if (move.numSources == 1) {
      if (const std::byte* from = addressOf(sources_[move.firstSource]); from != out) {
        copyFew(out, from, move.bytes);
      }
      if (staging_ != nullptr) {
        staging_->wrote(out, move.bytes, move.bytes);
      }
      continue;
    }
    for (std::uint32_t i = 0; i < move.numSources; ++i) {
      addresses_[i] = addressOf(sources_[move.firstSource + i]);
    }
    reduceContiguous(out, std::span(addresses_).first(move.numSources), move.numElems, move.dtype, move.reduction);
    if (staging_ != nullptr) {
      staging_->wrote(out, move.bytes, move.bytes);
    }
  }
}

void ShortRun::announceWrites(Staging& staging) const {
  for (const Move& move : moves_) {
    staging.willWrite(outputs_[static_cast<std::size_t>(move.output)] + move.offset, move.bytes, move.bytes);
  }
}

Status ShortRun::misfit(Rank from, FrameKind kind) const {
  return {StatusCode::kInternal,
          Activity::misfit(from, kind).message() +
              ": short operations need none. SHARDWIRE_INLINE_BYTES must be the same on all ranks"};
}

bool ShortRun::needs(Rank peer) const {
  const auto isPeers = [&](const auto& edge) { return edge.peer == peer; };
  const auto send = std::find_if(sends_.begin(), sends_.end(), isPeers);
  if (send != sends_.end() && !send->done) {
    return true;
  }
  const auto receive = std::find_if(receives_.begin(), receives_.end(), isPeers);
  return receive != receives_.end() && !receive->here && !hasSentItsPart(peer);
}

}  // namespace shardwire::internal
