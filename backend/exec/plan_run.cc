// A run consists of parts, and each step gives every part a turn. First the sends, because peers wait for these; then
// the receives; then the run's own copies, which wait for no peer and so fill the time without bytes from peers; the
// combines after all own copies. The run is over when every part is done. Nothing here waits: a part that cannot go on
// returns, and the engine calls step() again. A later operation must not send to a peer while this run still has staged
// bytes for the peer (`blockedBulk`). As long as the previous run of the same operation, or the gate, holds this run
// back, the run only holds back later operations.
#include "backend/exec/plan_run.h"

#include <algorithm>

#include "ops/boxes/cast_box.h"

namespace shardwire::internal {

namespace {

// A run with at most this many bytes on the longest edge is over in some tens of microseconds, at about this rate.
constexpr std::uint64_t kMaxSpinBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kSpinBytesPerNanosecond = 16;
// Tensors from a device come in pieces of about this size.
constexpr std::size_t kStagedCopySegment = std::size_t{1} << 20;
// A run that writes so many bytes stores payloads out of frames past the caches. Below, measured on a Xeon, the bytes
// that this core wrote to the outputs before often still lie in its cache, and stores past it have to remove them.
constexpr std::uint64_t kStreamUnpackedFrom = std::uint64_t{24} << 20;

}  // namespace

PlanRun::PlanRun(std::shared_ptr<const Plan> plan)
    : Run(std::move(plan)),
      scope_{.plan = *plan_, .activity = *this},
      reads_(scope_),
      sendTo_(static_cast<std::size_t>(plan_->worldSize)),
      receiveFrom_(static_cast<std::size_t>(plan_->worldSize)),
      combiner_(scope_, reads_, receiveFrom_) {
  sends_.reserve(plan_->sends.size());
  for (const PlanEdge& edge : plan_->sends) {
    sendTo_[static_cast<std::size_t>(edge.peer)] = &sends_.emplace_back(scope_, edge);
  }
  receives_.reserve(plan_->receives.size());
  for (const PlanEdge& edge : plan_->receives) {
    receiveFrom_[static_cast<std::size_t>(edge.peer)] = &receives_.emplace_back(scope_, reads_, edge);
  }
  chooseSpin();
  noteMoves();
}

void PlanRun::chooseSpin() {
  std::uint64_t longest = 0;
  for (const auto* edges : {&plan_->sends, &plan_->receives}) {
    for (const PlanEdge& edge : *edges) {
      longest = std::max(longest, edge.bytes);
    }
  }
  if (longest <= kMaxSpinBytes) {
    worthSpinning_ = kShortSpin + std::chrono::nanoseconds(longest / kSpinBytesPerNanosecond);
  }
}

void PlanRun::noteMoves() {
  std::uint64_t written = 0;
  for (const PlanMove& move : plan_->moves) {
    written += moveBytes(*plan_, move);
    for (std::uint32_t i = 0; i < move.numSources; ++i) {
      const PlanSource& source = plan_->sources[move.firstSource + i];
      if (source.rank != plan_->rank) {
        receiveFrom_[static_cast<std::size_t>(source.rank)]->noteSource(source, move.shape,
                                                                        elementBytes(move.sourceDtype));
      }
    }
  }
  // The whole plan counts, not the current piece: a plan with so many written bytes leaves nothing useful in the cache.
  scope_.hint = written >= kStreamFromBytes ? StoreHint::kStream : StoreHint::kAuto;
  scope_.readHint = written >= kStreamFromBytes ? StoreHint::kStream : StoreHint::kFar;
  scope_.unpackHint = written >= kStreamUnpackedFrom ? StoreHint::kStream : StoreHint::kFar;
}

void PlanRun::prepare(std::span<const TensorView> inputs, std::span<const TensorView> outputs) {
  scope_.inputs.assign(inputs.begin(), inputs.end());
  scope_.outputs.assign(outputs.begin(), outputs.end());
  prepareAgain();
}

void PlanRun::prepareAgain() {
  reuse();
  follow(nullptr, false);
  stage(nullptr);
  const auto reset = [](auto& part) { part.reset(); };
  std::for_each(sends_.begin(), sends_.end(), reset);
  std::for_each(receives_.begin(), receives_.end(), reset);
  combiner_.reset();
  ownCopy_ = 0;
  cursorOpen_ = false;
  hasStepped_ = finished_ = false;
}

bool PlanRun::step(std::vector<bool>& blockedBulk) {
  if (finished_ || mustWait(blockedBulk)) {
    return false;
  }
  if (!isPinned_ && !context().wires.empty()) {
    pinTensors();
  }
  if (receives_.empty() && !hasStepped_ && isOutOfStep()) {
    return false;
  }
  scope_.staging = staging_;
  if (!hasStepped_) {
    hasStepped_ = true;
    chooseWay();
  }
  bool moved = false;
  for (SendEdge& edge : sends_) {
    moved |= edge.step(blockedBulk);
  }
  for (ReceiveEdge& edge : receives_) {
    moved |= edge.step();
  }
  moved |= ownCopy_ < plan_->numOwnCopies ? stepOwnCopies() : combiner_.step();
  for (ReceiveEdge& edge : receives_) {
    moved |= edge.finish(combiner_.isDone());
  }
  finished_ = isOver();
  if (finished_) {
    noteWay();
  }
  if (finished_ && !keepsPins_) {
    pins_.release();
    isPinned_ = false;
  }
  return moved || finished_;
}

// ---- reads across memories, or staging

void PlanRun::chooseWay() {
  startedAt_ = {};
  scope_.way = OrdinaryWay::kByRule;
  if (context().hasCorePerRank && staging_ == nullptr && !sends_.empty() && !receives_.empty()) {
    startedAt_ = Clock::now();
    if (const std::optional<bool> isRead = measured_.nextIsRead(seq); isRead.has_value()) {
      scope_.way = *isRead ? OrdinaryWay::kRead : OrdinaryWay::kStage;
    }
  }
}

void PlanRun::noteWay() {
  const bool anyRead =
      std::any_of(sends_.begin(), sends_.end(), [](const SendEdge& edge) { return edge.readsMeasured(); });
  const bool anyStaged =
      std::any_of(sends_.begin(), sends_.end(), [](const SendEdge& edge) { return edge.stagesMeasured(); });
  if (startedAt_ == Clock::time_point{} || anyRead == anyStaged) {
    return;
  }
  measured_.note(anyRead, static_cast<double>((Clock::now() - startedAt_).count()));
}

bool PlanRun::isOver() const {
  const auto isDone = [](const auto& part) { return part.isDone(); };
  return ownCopy_ == plan_->numOwnCopies && combiner_.isDone() && std::all_of(sends_.begin(), sends_.end(), isDone) &&
         std::all_of(receives_.begin(), receives_.end(), isDone);
}

bool PlanRun::stepOwnCopies() {
  const PlanMove& move = plan_->moves[ownCopy_];
  const PlanSource& source = plan_->sources[move.firstSource];
  const std::size_t elemBytes = scope_.elemBytesOf(move);
  if (!cursorOpen_) {
    cursor_ = SegmentCursor(move.shape, elemBytes, staging_ == nullptr ? kCopySegment : kStagedCopySegment);
    cursorOpen_ = true;
  }
  const StridedBox from = boxOf(scope_.input(source.input), sumOf(source.offset, cursor_.offset()));
  const StridedBox to = scope_.outputBox(move, cursor_.offset());
  if (!scope_.isReady(from, cursor_.shape(), elementBytes(move.sourceDtype)) ||
      !scope_.isReady(to, cursor_.shape(), elemBytes)) {
    return false;
  }
  castBox(to, scope_.dtypeOf(move), from, move.sourceDtype, cursor_.shape(), scope_.hint);
  scope_.wrote(to, cursor_.shape(), elemBytes);
  cursor_.next();
  if (cursor_.done()) {
    cursorOpen_ = false;
    ++ownCopy_;
  }
  return true;
}

void PlanRun::announceWrites(Staging& staging) const {
  for (const PlanMove& move : plan_->moves) {
    const StridedBox box = scope_.outputBox(move, Dims::filled(move.shape.size(), 0));
    staging.willWrite(box.bytes, extentBytes(box, move.shape, scope_.elemBytesOf(move)), moveBytes(*plan_, move));
  }
}

// ---- frames, and what is missing

Status PlanRun::onPost(Rank from, const Received<PostFrame>& frame) {
  ReceiveEdge* const receive = receiveFrom_[static_cast<std::size_t>(from)];
  if (receive == nullptr) {
    context().desync(from, seq);  // the same call with other sizes
    return Status::ok();
  }
  return receive->onPost(frame);
}

Status PlanRun::onAck(Rank from, const Received<AckFrame>&) {
  SendEdge* const send = sendTo_[static_cast<std::size_t>(from)];
  return send == nullptr ? misfit(from, FrameKind::kAck) : send->onAck();
}

bool PlanRun::isOpen(Rank peer) const {
  const SendEdge* const send = sendTo_[static_cast<std::size_t>(peer)];
  const ReceiveEdge* const receive = receiveFrom_[static_cast<std::size_t>(peer)];
  return (send != nullptr && !send->isDone()) || (receive != nullptr && !receive->isDone() && !receive->hasTakenAll());
}

bool PlanRun::needs(Rank peer) const {
  if (const SendEdge* const send = sendTo_[static_cast<std::size_t>(peer)]; send != nullptr && !send->isDone()) {
    return true;
  }
  const ReceiveEdge* const receive = receiveFrom_[static_cast<std::size_t>(peer)];
  return isOpen(peer) && (!hasSentItsPart(peer) || receive->awaitsMoreThanStaged());
}

bool PlanRun::hasArrivedFrom(Rank peer) const {
  const ReceiveEdge* const receive = receiveFrom_[static_cast<std::size_t>(peer)];
  // The peer's staged bytes may be in the lane unread, because another peer's bytes come first.
  return receive != nullptr && (receive->isSeen() || Run::hasArrivedFrom(peer));
}

// ---- pins

// Pins inputs from which peers may fetch, and outputs into which this rank fetches; staged boxes need no pins.
void PlanRun::pinTensors() {
  isPinned_ = true;
  const auto isFetched = [&](const PlanEdge& edge) {
    return context().connection(edge.peer).readLimits().isWire && !scope_.isSilent(edge);
  };
  std::vector<bool> isRead(scope_.inputs.size());
  for (const PlanEdge& edge : plan_->sends) {
    const std::uint32_t end = isFetched(edge) ? edge.first + edge.numCopies : edge.first;
    for (std::uint32_t i = edge.first; i < end; ++i) {
      isRead[static_cast<std::size_t>(plan_->sendItems[i].input)] = true;
    }
  }
  std::vector<bool> isWritten(scope_.outputs.size());
  for (const PlanEdge& edge : plan_->receives) {
    const std::uint32_t end = isFetched(edge) ? edge.first + edge.count : edge.first;
    for (std::uint32_t i = edge.first; i < end; ++i) {
      isWritten[static_cast<std::size_t>(plan_->moves[i].output)] = true;
    }
  }
  for (std::size_t i = 0; i < isRead.size(); ++i) {
    if (isRead[i]) {
      pins_.add(context().wires, scope_.inputs[i], false);
    }
  }
  for (std::size_t i = 0; i < isWritten.size(); ++i) {
    if (isWritten[i]) {
      pins_.add(context().wires, scope_.outputs[i], true);
    }
  }
}

void PlanRun::keepPins(bool keeps) {
  keepsPins_ = keeps;
  if (!keeps && isDone()) {
    pins_.release();
    isPinned_ = false;
  }
}

}  // namespace shardwire::internal
