// Set-up, completion and the receiving half of a run; the sending half is in plan_run_send.cc, reads of peers' memory in plan_run_read.cc.
#include "backend/exec/plan_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/exec/engine.h"
#include "ops/reduce/reduce_box.h"

namespace shardwire::internal {

namespace {

// Up to so many bytes on its longest edge, a run is over in some tens of microseconds, at about this rate.
constexpr std::uint64_t kMaxSpinBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kSpinBytesPerNanosecond = 16;
// A copy from memory that needs no staging goes in pieces of this size, so that other edges are looked at in between.
constexpr std::size_t kCopySegment = std::size_t{4} << 20;
// Tensors that come from a device come in pieces of this order.
constexpr std::size_t kStagedCopySegment = std::size_t{1} << 20;

void addTo(Dims& sum, const Dims& other) {
  for (int d = 0; d < sum.size(); ++d) {
    sum[d] += other[d];
  }
}

}  // namespace

PlanRun::PlanRun(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {
  fingerprint = plan_->fingerprint;
  worldSize_ = plan_->worldSize;
  sends_.resize(plan_->sends.size());
  receives_.resize(plan_->receives.size());
  sendTo_.assign(static_cast<std::size_t>(plan_->worldSize), -1);
  receiveOf_.assign(static_cast<std::size_t>(plan_->worldSize), -1);
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    sendTo_[static_cast<std::size_t>(plan_->sends[i].peer)] = static_cast<std::int32_t>(i);
    sends_[i].reach.resize(plan_->sends[i].inputs.size());
    sends_[i].address.resize(plan_->sends[i].inputs.size());
  }
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    const PlanEdge& edge = plan_->receives[i];
    receiveOf_[static_cast<std::size_t>(edge.peer)] = static_cast<std::int32_t>(i);
    receives_[i].slots.resize(edge.inputs.size());
    receives_[i].hasCombines = edge.numItems > edge.count;
  }
  std::uint64_t longest = 0;
  for (const auto& edges : {plan_->sends, plan_->receives}) {
    for (const PlanEdge& edge : edges) {
      longest = std::max(longest, edge.bytes);
    }
  }
  if (longest <= kMaxSpinBytes) {
    worthSpinning_ = kShortSpin + std::chrono::nanoseconds(longest / kSpinBytesPerNanosecond);
  }
  std::uint32_t most = 0;
  std::uint64_t written = 0;
  for (const PlanMove& move : plan_->moves) {
    most = std::max(most, move.numSources);
    written += moveBytes(*plan_, move);
  }
  // The whole plan counts, not the piece in hand: one that writes this much leaves nothing useful in the cache.
  hint_ = written >= kStreamFromBytes ? StoreHint::kStream : StoreHint::kAuto;
  combineSources_.resize(most);
}

void PlanRun::prepare(std::span<const TensorView> inputs, std::span<const TensorView> outputs) {
  inputs_.assign(inputs.begin(), inputs.end());
  outputs_.assign(outputs.begin(), outputs.end());
  prepareAgain();
}

void PlanRun::prepareAgain() {
  reuse();
  follow(nullptr, false);
  stage(nullptr);
  for (SendState& state : sends_) {
    state.started = state.silent = state.anyExposed = state.anyStaged = state.acked = state.done = false;
    state.slotsPosted = 0;
    state.item = state.groupEnd = state.inGroup = 0;
    state.cursor = {};
    state.frame = {};
    state.filled = 0;
  }
  for (ReceiveState& state : receives_) {
    state.silent = state.seen = state.anyExposed = state.done = state.cursorOpen = false;
    state.slotsKnown = state.move = 0;
    state.frame = {};
    state.read = 0;
  }
  ownCopy_ = combine_ = combineReady_ = 0;
  cursorOpen_ = false;
  heldBytes_ = 0;
  finished_ = false;
}

bool PlanRun::step(Engine& engine, std::vector<bool>& blockedBulk) {
  if (finished_ || mustWait(plan_->sends, blockedBulk)) {
    return false;
  }
  if (!isPinned_ && !engine.wires().empty()) {
    pinTensors(engine);
  }
  bool moved = false;
  for (std::size_t edge = 0; edge < sends_.size(); ++edge) {
    moved |= stepSend(engine, edge, blockedBulk);
  }
  for (std::size_t edge = 0; edge < receives_.size(); ++edge) {
    moved |= stepReceive(engine, edge);
  }
  // Own copies wait for nobody, so they fill the time in which nothing from others is ready.
  if (ownCopy_ < plan_->numOwnCopies) {
    moved |= stepOwnCopies();
  } else {
    moved |= stepCombines(engine);
  }
  moved |= finishReceives(engine);
  const auto isDone = [](const auto& state) { return state.done; };
  finished_ = ownCopy_ == plan_->numOwnCopies && plan_->firstCombine + combine_ == plan_->moves.size() &&
              std::all_of(sends_.begin(), sends_.end(), isDone) && std::all_of(receives_.begin(), receives_.end(), isDone);
  if (finished_ && !keepsPins_) {
    pins_.release();
    isPinned_ = false;
  }
  return moved || finished_;
}

Status PlanRun::onFrame(Engine& engine, Rank from, const FrameHeader& header, std::span<const std::byte> payload) {
  const auto peer = static_cast<std::size_t>(from);
  if (header.kind == FrameKind::kAck && sendTo_[peer] >= 0) {
    sends_[static_cast<std::size_t>(sendTo_[peer])].acked = true;
    return Status::ok();
  }
  const auto malformed = [&] {
    return Status(StatusCode::kInternal,
                  fmt::format("rank {} sent a frame (kind {}) that does not fit {}", from, static_cast<int>(header.kind), *description));
  };
  if (header.kind != FrameKind::kPost || receiveOf_[peer] < 0) {
    return malformed();
  }
  ReceiveState& state = receiveFrom(from);
  const PlanEdge& edge = plan_->receives[static_cast<std::size_t>(receiveOf_[peer])];
  state.seen = true;
  if (header.a != state.slotsKnown || header.b > edge.inputs.size() - state.slotsKnown) {
    return malformed();
  }
  for (std::uint32_t i = 0; i < header.b; ++i) {
    PostEntry entry;
    if (payload.size() < sizeof entry) {
      return malformed();
    }
    std::memcpy(&entry, payload.data(), sizeof entry);
    payload = payload.subspan(sizeof entry);
    if (entry.numDims > kMaxDims || entry.reach > static_cast<std::uint8_t>(Reach::kFetch) ||
        payload.size() < entry.numDims * sizeof(std::int64_t)) {
      return malformed();
    }
    RemoteInput& slot = state.slots[state.slotsKnown++];
    slot.reach = static_cast<Reach>(entry.reach);
    slot.byteStrides = Dims::filled(entry.numDims, 0);
    std::memcpy(slot.byteStrides.begin(), payload.data(), entry.numDims * sizeof(std::int64_t));
    payload = payload.subspan(entry.numDims * sizeof(std::int64_t));
    slot.space = entry.space;
    slot.address = entry.address;
    if (slot.reach != Reach::kNone) {
      state.anyExposed = true;
    }
    if (slot.reach == Reach::kDirect) {
      slot.base = engine.connection(from)->map({entry.space, entry.address}, 1);
      if (slot.base == nullptr) {
        return malformed();
      }
    }
  }
  return Status::ok();
}

bool PlanRun::isOpen(Rank peer) const {
  const auto p = static_cast<std::size_t>(peer);
  return (sendTo_[p] >= 0 && !sends_[static_cast<std::size_t>(sendTo_[p])].done) ||
         (receiveOf_[p] >= 0 && !receives_[static_cast<std::size_t>(receiveOf_[p])].done);
}

bool PlanRun::needs(Rank peer) const {
  const auto p = static_cast<std::size_t>(peer);
  if (sendTo_[p] >= 0 && !sends_[static_cast<std::size_t>(sendTo_[p])].done) {
    return true;
  }
  if (!isOpen(peer)) {
    return false;
  }
  return !hasSentItsPart(peer);
}

bool PlanRun::heardFrom(Rank peer) const {
  const std::int32_t index = receiveOf_[static_cast<std::size_t>(peer)];
  if (index < 0) {
    return false;
  }
  if (receives_[static_cast<std::size_t>(index)].seen) {
    return true;
  }
  // Its staged bytes may be here and not looked at yet, because another peer's come first.
  return Run::heardFrom(peer);
}

std::size_t PlanRun::elemBytesOf(const PlanMove& move) const {
  return elementBytes(plan_->outputs[static_cast<std::size_t>(move.output)].dtype);
}

StridedBox PlanRun::outputBox(const PlanMove& move, const Dims& segmentOffset) const {
  Dims offset = move.offset;
  addTo(offset, segmentOffset);
  return boxOf(outputs_[static_cast<std::size_t>(move.output)], offset);
}

bool PlanRun::stepOwnCopies() {
  const PlanMove& move = plan_->moves[ownCopy_];
  const PlanSource& source = plan_->sources[move.firstSource];
  if (!cursorOpen_) {
    cursor_ = SegmentCursor(move.shape, elemBytesOf(move), staging_ == nullptr ? kCopySegment : kStagedCopySegment);
    cursorOpen_ = true;
  }
  Dims offset = source.offset;
  addTo(offset, cursor_.offset());
  const StridedBox from = boxOf(inputs_[static_cast<std::size_t>(source.input)], offset);
  const StridedBox to = outputBox(move, cursor_.offset());
  if (!isReady(from, cursor_.shape(), elemBytesOf(move)) || !isReady(to, cursor_.shape(), elemBytesOf(move))) {
    return false;
  }
  copyBox(to, from, cursor_.shape(), elemBytesOf(move), hint_);
  wrote(to, cursor_.shape(), elemBytesOf(move));
  cursor_.next();
  if (cursor_.done()) {
    cursorOpen_ = false;
    ++ownCopy_;
  }
  return true;
}

void PlanRun::announceWrites(Staging& staging) const {
  for (const PlanMove& move : plan_->moves) {
    const StridedBox box = outputBox(move, Dims::filled(move.shape.size(), 0));
    staging.willWrite(box.bytes, extentBytes(box, move.shape, elemBytesOf(move)), moveBytes(*plan_, move));
  }
}

// ---- what others send

bool PlanRun::readyToRead(Engine& engine, const PlanEdge& edge, ReceiveState& state) {
  if (state.silent || (state.slotsKnown == edge.inputs.size() && state.slotsKnown > 0)) {
    return true;
  }
  // The first staged frame tells when no post is coming.
  return openFrame(engine, edge, state) == Take::kDone && state.silent;
}

PlanRun::Take PlanRun::openFrame(Engine& engine, const PlanEdge& edge, ReceiveState& state) {
  if (!state.frame.empty()) {
    return Take::kDone;
  }
  Connection& connection = *engine.connection(edge.peer);
  const auto frame = connection.peek(Lane::kBulk);
  if (frame.empty()) {
    return Take::kNotReady;
  }
  const FrameHeader header = readHeader(frame);
  if (header.seq != seq) {
    return Take::kNotReady;  // of another operation in flight, whose turn comes first or later
  }
  if (header.fingerprint != fingerprint) {
    engine.desync(edge.peer, seq);
    return Take::kNotReady;
  }
  if (header.kind != FrameKind::kBytes || header.payloadBytes != frame.size() - sizeof header || header.a != engine.segmentBytes()) {
    engine.poison(unreadable(engine, edge.peer, header), true);
    return Take::kFailed;
  }
  state.seen = true;
  state.silent = (header.flags & kNoPost) != 0;
  state.frame = frame;
  state.read = sizeof header;
  return Take::kDone;
}

void PlanRun::consume(Engine& engine, const PlanEdge& edge, ReceiveState& state, std::size_t bytes) {
  state.read += bytes;
  if (state.read == state.frame.size()) {
    engine.connection(edge.peer)->release(Lane::kBulk);
    state.frame = {};
  }
}

bool PlanRun::copySegment(Engine& engine, const PlanEdge& edge, ReceiveState& state, const PlanMove& move, const PlanSource& source) {
  const Dims& shape = state.cursor.shape();
  const std::size_t elemBytes = elemBytesOf(move);
  const StridedBox dst = outputBox(move, state.cursor.offset());
  if (!isReady(dst, shape, elemBytes)) {
    return false;
  }
  if (reachOf(source) == Reach::kNone) {
    if (openFrame(engine, edge, state) != Take::kDone) {
      return false;
    }
    if (state.frame.size() - state.read < state.cursor.bytes()) {
      engine.desync(edge.peer, seq);
      return false;
    }
    unpackBox(dst, state.frame.data() + state.read, shape, elemBytes, hint_);
    wrote(dst, shape, elemBytes);
    consume(engine, edge, state, state.cursor.bytes());
    return true;
  }
  const RemoteInput& slot = state.slots[static_cast<std::size_t>(source.slot)];
  Dims offset = source.offset;
  addTo(offset, state.cursor.offset());
  if (slot.reach == Reach::kDirect) {
    // The peer's memory is only read; StridedBox has no const twin.
    const StridedBox src{const_cast<std::byte*>(slot.base) + byteOffset(slot.byteStrides, offset), slot.byteStrides};
    copyBox(dst, src, shape, elemBytes, hint_);
    wrote(dst, shape, elemBytes);
    return true;
  }
  if (slot.reach == Reach::kFetch) {
    return startFetch(engine, edge, state, dst, slot, offset, shape, elemBytes);
  }
  if (Status status = readBox(engine, *engine.connection(edge.peer), dst, slot, offset, shape, elemBytes); !status.isOk()) {
    engine.poison(std::move(status), true);
    return false;
  }
  wrote(dst, shape, elemBytes);
  return true;
}

bool PlanRun::stepReceive(Engine& engine, std::size_t index) {
  const PlanEdge& edge = plan_->receives[index];
  ReceiveState& state = receives_[index];
  if (state.done) {
    return false;
  }
  bool moved = takeLandings(state);
  if (state.move == edge.count || !readyToRead(engine, edge, state)) {
    return moved;
  }
  std::size_t budget = kCopySegment;
  while (state.move < edge.count) {
    const PlanMove& move = plan_->moves[edge.first + state.move];
    const PlanSource& source = plan_->sources[move.firstSource];
    if (!state.cursorOpen) {
      state.cursor = SegmentCursor(move.shape, elemBytesOf(move), reachOf(source) == Reach::kNone ? engine.segmentBytes() : kCopySegment);
      state.cursorOpen = true;
    }
    if (!copySegment(engine, edge, state, move, source)) {
      return moved;
    }
    moved = true;
    budget -= std::min(budget, state.cursor.bytes());
    state.cursor.next();
    if (state.cursor.done()) {
      state.cursorOpen = false;
      ++state.move;
    }
    if (budget == 0) {
      break;
    }
  }
  return moved;
}

// ---- reductions

Reach PlanRun::reachOf(const PlanSource& source) {
  if (source.rank == plan_->rank) {
    return Reach::kDirect;
  }
  const ReceiveState& state = receiveFrom(source.rank);
  return state.silent ? Reach::kNone : state.slots[static_cast<std::size_t>(source.slot)].reach;
}

bool PlanRun::appearsLater(const PlanMove& move, std::uint32_t index) const {
  const Rank rank = plan_->sources[move.firstSource + index].rank;
  for (std::uint32_t i = index + 1; i < move.numSources; ++i) {
    if (plan_->sources[move.firstSource + i].rank == rank) {
      return true;
    }
  }
  return false;
}

PlanRun::Take PlanRun::gatherSources(Engine& engine, const PlanMove& move) {
  for (; combineReady_ < move.numSources; ++combineReady_) {
    const PlanSource& source = plan_->sources[move.firstSource + combineReady_];
    StridedBox& box = combineSources_[combineReady_];
    Dims offset = source.offset;
    addTo(offset, cursor_.offset());
    if (source.rank == plan_->rank) {
      box = boxOf(inputs_[static_cast<std::size_t>(source.input)], offset);
      if (!isReady(box, cursor_.shape(), elemBytesOf(move))) {
        return Take::kNotReady;
      }
      continue;
    }
    const PlanEdge& edge = plan_->receives[static_cast<std::size_t>(receiveOf_[static_cast<std::size_t>(source.rank)])];
    ReceiveState& state = receiveFrom(source.rank);
    if (!readyToRead(engine, edge, state)) {
      return Take::kNotReady;
    }
    const Reach reach = reachOf(source);
    if (reach == Reach::kDirect) {
      const RemoteInput& slot = state.slots[static_cast<std::size_t>(source.slot)];
      box = {const_cast<std::byte*>(slot.base) + byteOffset(slot.byteStrides, offset), slot.byteStrides};
    } else if (reach == Reach::kFetch) {
      // See PlanRun::chooseReach.
      engine.poison({StatusCode::kInternal, fmt::format("rank {} offered fetches of what {} combines", edge.peer, *description)}, true);
      return Take::kFailed;
    } else if (reach == Reach::kNone) {
      // The edge's copies come first on the wire.
      if (state.move < edge.count || openFrame(engine, edge, state) != Take::kDone) {
        return Take::kNotReady;
      }
      const std::size_t bytes = cursor_.bytes();
      if (state.frame.size() - state.read < bytes) {
        engine.desync(edge.peer, seq);
        return Take::kFailed;
      }
      const std::byte* packed = state.frame.data() + state.read;
      if (appearsLater(move, combineReady_)) {
        // The peer's next source of this combine is behind this one: keep this one apart. held_ was sized for all of them.
        std::byte* copy = held_.data() + heldBytes_;
        std::copy_n(packed, bytes, copy);
        heldBytes_ += bytes;
        consume(engine, edge, state, bytes);
        packed = copy;
      }
      box = {const_cast<std::byte*>(packed), packedByteStrides(cursor_.shape(), elemBytesOf(move))};
    }
  }
  return Take::kDone;
}

bool PlanRun::fetchCopied(Engine& engine, const PlanMove& move) {
  std::size_t copied = 0;
  for (std::uint32_t i = 0; i < move.numSources; ++i) {
    copied += reachOf(plan_->sources[move.firstSource + i]) == Reach::kCopy ? 1 : 0;
  }
  if (copied == 0) {
    return true;
  }
  // Room for one more segment: readBox may use the scratch's beginning to unpack, but packed destinations never need that.
  std::byte* next = engine.scratch(copied * cursor_.bytes()).data();
  const Dims strides = packedByteStrides(cursor_.shape(), elemBytesOf(move));
  for (std::uint32_t i = 0; i < move.numSources; ++i) {
    const PlanSource& source = plan_->sources[move.firstSource + i];
    if (reachOf(source) != Reach::kCopy) {
      continue;
    }
    Dims offset = source.offset;
    addTo(offset, cursor_.offset());
    const StridedBox box{next, strides};
    Status status =
        readBox(engine, *engine.connection(source.rank), box, receiveFrom(source.rank).slots[static_cast<std::size_t>(source.slot)], offset,
                cursor_.shape(), elemBytesOf(move));
    if (!status.isOk()) {
      engine.poison(std::move(status), true);
      return false;
    }
    combineSources_[i] = box;
    next += cursor_.bytes();
  }
  return true;
}

void PlanRun::consumeSources(Engine& engine, const PlanMove& move) {
  for (std::uint32_t i = 0; i < move.numSources; ++i) {
    const PlanSource& source = plan_->sources[move.firstSource + i];
    if (source.rank != plan_->rank && reachOf(source) == Reach::kNone && !appearsLater(move, i)) {
      consume(engine, plan_->receives[static_cast<std::size_t>(receiveOf_[static_cast<std::size_t>(source.rank)])],
              receiveFrom(source.rank), cursor_.bytes());
    }
  }
}

bool PlanRun::stepCombines(Engine& engine) {
  std::size_t budget = kCopySegment;
  bool moved = false;
  while (plan_->firstCombine + combine_ < plan_->moves.size() && budget > 0) {
    const PlanMove& move = plan_->moves[plan_->firstCombine + combine_];
    if (!cursorOpen_) {
      cursor_ = SegmentCursor(move.shape, elemBytesOf(move), engine.segmentBytes());
      cursorOpen_ = true;
      combineReady_ = 0;
      heldBytes_ = 0;
      if (held_.size() < move.numSources * cursor_.bytes() && plan_->worldSize > 1) {
        held_.resize(move.numSources * cursor_.bytes());
      }
    }
    const StridedBox to = outputBox(move, cursor_.offset());
    if (!isReady(to, cursor_.shape(), elemBytesOf(move)) || gatherSources(engine, move) != Take::kDone || !fetchCopied(engine, move)) {
      return moved;
    }
    reduceBox(to, std::span(combineSources_).first(move.numSources), cursor_.shape(),
              plan_->outputs[static_cast<std::size_t>(move.output)].dtype, move.reduction, hint_);
    wrote(to, cursor_.shape(), elemBytesOf(move));
    consumeSources(engine, move);
    moved = true;
    budget -= std::min(budget, cursor_.bytes());
    combineReady_ = 0;
    heldBytes_ = 0;
    cursor_.next();
    if (cursor_.done()) {
      cursorOpen_ = false;
      ++combine_;
    }
  }
  return moved;
}

bool PlanRun::finishReceives(Engine& engine) {
  bool moved = false;
  const bool combined = plan_->firstCombine + combine_ == plan_->moves.size();
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    const PlanEdge& edge = plan_->receives[i];
    ReceiveState& state = receives_[i];
    if (state.done || state.move < edge.count || state.isFetching() || (state.hasCombines && !combined)) {
      continue;
    }
    if (!state.frame.empty()) {
      engine.desync(edge.peer, seq);  // the peer sent more than this operation takes
      continue;
    }
    if (state.anyExposed && !engine.sendControl(edge.peer, {.kind = FrameKind::kAck, .seq = seq, .fingerprint = fingerprint})) {
      continue;  // no room for the acknowledgement now
    }
    state.done = true;
    moved = true;
  }
  return moved;
}

}  // namespace shardwire::internal
