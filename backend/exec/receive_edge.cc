// The receiver pulls. The peer's posts state the memory that this rank may read; an edge without posts is marked so in
// the first staged frame. Then the edge's copies are done in the plan's order, segment by segment: out of the peer's
// memory, out of a fetch, or out of the current frame. After the copies the Combiner takes the boxes to combine, in the
// same order. When nothing is left the peer is notified (ack), if the peer waits for an acknowledgement. Everything
// that a peer posts is checked against the boxes that the plan reads before the first use, so that wrong strides cannot
// lead out of the memory that the peer exposed.
#include "backend/exec/receive_edge.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "ops/boxes/cast_box.h"

namespace shardwire::internal {

ReceiveEdge::ReceiveEdge(const RunScope& run, RemoteReads& reads, const PlanEdge& edge)
    : run_(run),
      reads_(reads),
      edge_(edge),
      bounds_(edge.inputs.size()),
      hasCombines_(edge.numItems > edge.count),
      slots_(edge.inputs.size()),
      landings_(run, reads) {}

void ReceiveEdge::noteSource(const PlanSource& source, const Dims& shape, std::size_t elemBytes) {
  SlotBounds& bounds = bounds_[static_cast<std::size_t>(source.slot)];
  if (bounds.elemBytes == 0) {
    bounds = {Dims::filled(source.offset.size(), 0), elemBytes};
  }
  for (int d = 0; d < source.offset.size(); ++d) {
    bounds.end[d] = std::max(bounds.end[d], source.offset[d] + shape[d]);
  }
}

void ReceiveEdge::reset() {
  silent_ = seen_ = anyExposed_ = done_ = cursorOpen_ = false;
  slotsKnown_ = move_ = 0;
  frame_ = {};
  read_ = 0;
  taken_ = 0;
}

// ---- posts

namespace {

// Longer than any memory, and so short that twice the length is a number still: the loop over the runs of a box
// computes a place one stride behind the box (forEachRun).
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

// Bytes from a tensor's first element to the end of the element at `end` - 1; nothing where a tensor cannot have such
// strides.
std::optional<std::size_t> extentOf(const Dims& byteStrides, const Dims& end, std::size_t elemBytes) {
  auto extent = static_cast<std::int64_t>(elemBytes);
  for (int d = 0; d < byteStrides.size(); ++d) {
    std::int64_t step = 0;
    if (byteStrides[d] < 0 || __builtin_mul_overflow(byteStrides[d], end[d] - 1, &step) ||
        __builtin_add_overflow(extent, step, &extent) || extent > kMostBytes) {
      return std::nullopt;
    }
  }
  return static_cast<std::size_t>(extent);
}

}  // namespace

Status ReceiveEdge::onPost(const Received<PostFrame>& frame) {
  if (frame.edgeBytes != edge_.bytes) {
    run_.context().desync(edge_.peer, run_.activity.seq);  // the same call with other sizes
    return Status::ok();
  }
  seen_ = true;
  if (silent_ || frame.firstSlot != slotsKnown_ || frame.numSlots > slots_.size() - slotsKnown_) {
    return run_.activity.misfit(edge_.peer, FrameKind::kPost);
  }
  Payload rest = frame.payload;
  for (std::uint32_t i = 0; i < frame.numSlots; ++i) {
    if (const std::optional<PostedSlot> posted = takePostedSlot(rest); !posted.has_value() || !takeSlot(*posted)) {
      return run_.activity.misfit(edge_.peer, FrameKind::kPost);
    }
  }
  return Status::ok();
}

bool ReceiveEdge::takeSlot(const PostedSlot& posted) {
  const SlotBounds& bounds = bounds_[slotsKnown_];
  if (posted.byteStrides.size() != bounds.end.size()) {
    return false;
  }
  const std::optional<std::size_t> extent = extentOf(posted.byteStrides, bounds.end, bounds.elemBytes);
  if (!extent.has_value()) {
    return false;
  }
  const bool isRead = posted.reach == Reach::kCopy || posted.reach == Reach::kFetch;
  if (isRead && posted.address.value > std::numeric_limits<std::uint64_t>::max() - 2 * *extent) {
    return false;
  }
  RemoteInput& slot = slots_[slotsKnown_];
  slot.reach = posted.reach;
  slot.base = posted.reach == Reach::kDirect ? connection().map(posted.address, *extent) : nullptr;
  slot.space = posted.address.space;
  slot.address = posted.address.value;
  slot.byteStrides = posted.byteStrides;
  anyExposed_ |= posted.reach != Reach::kNone;
  ++slotsKnown_;
  return posted.reach != Reach::kDirect || slot.base != nullptr;
}

bool ReceiveEdge::awaitsMoreThanStaged() const {
  if (silent_ || anyExposed_ || slotsKnown_ == slots_.size()) {
    return anyExposed_;
  }
  const auto staged = readFrame<StagedFrame>(connection().peek(Lane::kBulk));
  return staged.has_value() && staged->operation.seq == run_.activity.seq && staged->isAll == 0;
}

// ---- staged bytes

bool ReceiveEdge::isReadable() {
  if (silent_ || (slotsKnown_ == slots_.size() && slotsKnown_ > 0)) {
    return true;
  }
  // The first staged frame shows that no post is coming.
  return openFrame() && silent_;
}

// Makes staged bytes of this run readable; false when no bytes have come, or the frame is not acceptable.
bool ReceiveEdge::openFrame() {
  if (!frame_.empty()) {
    return true;
  }
  const RunContext& context = run_.context();
  const auto staged = context.nextStaged(edge_.peer, run_.tag());
  if (!staged.has_value()) {
    return false;
  }
  if (staged->payload.empty() || (seen_ && silent_ != (staged->isAll == 1))) {
    context.fail(
        run_.activity.misfit(edge_.peer, FrameKind::kStaged));  // empty, or posted before, or announced without posts
    return false;
  }
  seen_ = true;
  silent_ = staged->isAll == 1;
  frame_ = staged->payload;
  read_ = 0;
  return true;
}

const std::byte* ReceiveEdge::staged(std::size_t bytes) {
  if (!openFrame()) {
    return nullptr;
  }
  if (frame_.size() - read_ < bytes) {
    run_.context().desync(edge_.peer, run_.activity.seq);
    return nullptr;
  }
  return frame_.data() + read_;
}

void ReceiveEdge::consume(std::size_t bytes) {
  read_ += bytes;
  taken_ += bytes;
  if (read_ == frame_.size()) {
    run_.context().releaseBulk(edge_.peer);
    frame_ = {};
  }
}

// ---- copies

StridedBox ReceiveEdge::directBox(std::int32_t slot, const Dims& offset) const {
  const RemoteInput& from = input(slot);
  // The peer's memory is only read; StridedBox has no const twin.
  return {const_cast<std::byte*>(from.base) + byteOffset(from.byteStrides, offset), from.byteStrides};
}

bool ReceiveEdge::step() {
  if (done_) {
    return false;
  }
  bool moved = landings_.take();
  if (areCopiesDone() || !isReadable()) {
    return moved;
  }
  std::size_t budget = kCopySegment;
  while (!areCopiesDone() && budget > 0) {
    const PlanMove& move = run_.plan.moves[edge_.first + move_];
    const PlanSource& source = run_.plan.sources[move.firstSource];
    if (!cursorOpen_) {
      openCursor(move, reachOf(source.slot));
    }
    if (!copySegment(move, source)) {
      return moved;
    }
    moved = true;
    budget -= std::min(budget, cursor_.bytes());
    cursor_.next();
    if (cursor_.done()) {
      cursorOpen_ = false;
      ++move_;
    }
  }
  return moved;
}

// Staged boxes are cut exactly as by the sender. Elements that are read and then cast pass through memory here: in
// pieces that stay in the cache.
void ReceiveEdge::openCursor(const PlanMove& move, Reach reach) {
  const std::size_t segmentBytes = run_.context().segmentBytes;
  if (reach == Reach::kNone) {
    cursor_ = SegmentCursor(move.shape, elementBytes(stagedDtypeOf(run_.plan, move)), segmentBytes);
  } else if (move.sourceDtype != run_.dtypeOf(move) && reach != Reach::kDirect) {
    cursor_ = SegmentCursor(move.shape, elementBytes(move.sourceDtype), segmentBytes);
  } else {
    cursor_ = SegmentCursor(move.shape, run_.elemBytesOf(move), kCopySegment);
  }
  cursorOpen_ = true;
}

bool ReceiveEdge::copySegment(const PlanMove& move, const PlanSource& source) {
  const Dims& shape = cursor_.shape();
  const std::size_t elemBytes = run_.elemBytesOf(move);
  const StridedBox dst = run_.outputBox(move, cursor_.offset());
  if (!run_.isReady(dst, shape, elemBytes)) {
    return false;
  }
  if (reachOf(source.slot) != Reach::kNone) {
    return read(move, source, dst);
  }
  const std::byte* const packed = staged(cursor_.bytes());
  if (packed == nullptr) {
    return false;
  }
  unpackCastBox(dst, run_.dtypeOf(move), packed, stagedDtypeOf(run_.plan, move), shape, run_.unpackHint);
  run_.wrote(dst, shape, elemBytes);
  consume(cursor_.bytes());
  return true;
}

// Reads the current segment out of the peer's memory.
bool ReceiveEdge::read(const PlanMove& move, const PlanSource& source, const StridedBox& dst) {
  const Dims& shape = cursor_.shape();
  const Dims offset = sumOf(source.offset, cursor_.offset());
  const DType dtype = run_.dtypeOf(move);
  const RemoteBox box{input(source.slot), offset, shape, move.sourceDtype};
  if (box.input.reach == Reach::kFetch) {
    return landings_.start(connection(), connection().readLimits().minLocalRunBytes, dst, dtype, box);
  }
  if (box.input.reach == Reach::kDirect) {
    const DirectRead reading(connection());
    if (!reading.isAllowed()) {
      return false;
    }
    castBox(dst, dtype, directBox(source.slot, offset), move.sourceDtype, shape, run_.readHint);
  } else if (Status status = reads_.copy(connection(), dst, dtype, box); !status.isOk()) {
    refuseRead(std::move(status));
    return false;
  }
  run_.wrote(dst, shape, elementBytes(dtype));
  return true;
}

void ReceiveEdge::refuseRead(Status status) {
  if (!connection().hasWithdrawn()) {
    run_.context().fail(std::move(status));
  }
}

bool ReceiveEdge::finish(bool areCombinesDone) {
  if (done_ || !areCopiesDone() || landings_.isFetching() || (hasCombines_ && !areCombinesDone)) {
    return false;
  }
  if (!frame_.empty()) {
    run_.context().desync(edge_.peer, run_.activity.seq);  // the peer sent more than this operation takes
    return false;
  }
  if (anyExposed_ && connection().hasWithdrawn()) {
    // The peer failed during the read, so that the bytes may be wrong. The peer's reason is on the way.
    return false;
  }
  // Without room for the acknowledgement: later.
  done_ = !anyExposed_ || run_.context().sendControl(edge_.peer, AckFrame{run_.tag()});
  return done_;
}

}  // namespace shardwire::internal
