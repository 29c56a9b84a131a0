// The sender chooses, for each input that the peer reads, how it travels: the peer reads it where it lies (then the edge is over when the
// peer acknowledges), or it is packed into the peer's ring (then it is over when the last frame is committed). One post frame tells all
// choices; an edge with so little that all of it is staged posts nothing. Boxes are packed in the plan's order, cut into segments; boxes
// that the peer combines with each other (a group) go segment by segment in turn. Only one operation at a time packs for a peer: frames
// of the bulk lane come in the order of the operations.
#include "backend/exec/send_edge.h"

#include <algorithm>

#include "ops/boxes/cast_box.h"

namespace shardwire::internal {

namespace {

// From here on packing stores past the cache: lines that are dirty in this core's cache come to the reading core far slower than lines from
// memory do. Shorter payloads are better off in the cache, where they arrive sooner.
constexpr std::uint64_t kStreamFrom = std::uint64_t{256} << 10;
constexpr std::size_t kStagedHead = kHeadBytes<StagedFrame>;

std::size_t extentBytes(const TensorView& view) {
  return extentBytes(boxOf(view, Dims::filled(view.shape.size(), 0)), view.shape, elementBytes(view.dtype));
}

}  // namespace

SendEdge::SendEdge(const RunScope& run, const PlanEdge& edge)
    : run_(run), edge_(edge), isNarrowed_(edge.inputs.size()), reach_(edge.inputs.size()), address_(edge.inputs.size()) {
  for (std::uint32_t i = 0; i < edge.count; ++i) {
    const DType dtype = run.plan.inputs[static_cast<std::size_t>(item(i).input)].dtype;
    if (elementBytes(item(i).stagedDtype) < elementBytes(dtype)) {
      isNarrowed_[static_cast<std::size_t>(item(i).slot)] = true;
    }
  }
}

void SendEdge::reset() {
  started_ = silent_ = anyExposed_ = anyStaged_ = acked_ = done_ = false;
  slotsPosted_ = 0;
  first_ = groupEnd_ = inGroup_ = 0;
  cursor_ = {};
  frame_ = {};
  filled_ = 0;
}

bool SendEdge::step(std::vector<bool>& blockedBulk) {
  if (done_) {
    return false;
  }
  bool moved = false;
  if (!started_) {
    if (!run_.context().connection(edge_.peer).isJoined()) {
      return false;
    }
    choosePaths();
    moved = true;
  }
  if (!isPosted()) {
    moved |= postSlots();
  }
  bool packed = !anyStaged_;
  if (anyStaged_) {
    std::vector<bool>::reference blocked = blockedBulk[static_cast<std::size_t>(edge_.peer)];
    if (first_ < edge_.count && !blocked) {
      moved |= packSome();
    }
    packed = first_ == edge_.count;
    if (!packed) {
      blocked = true;
    }
  }
  if (isPosted() && packed && (acked_ || !anyExposed_)) {
    conceal();
    done_ = true;
    moved = true;
  }
  return moved;
}

Status SendEdge::onAck() {
  const bool isDue = anyExposed_ && isPosted() && !acked_;
  if (!isDue) {
    return run_.activity.misfit(edge_.peer, FrameKind::kAck);
  }
  acked_ = true;
  return Status::ok();
}

// ---- paths

void SendEdge::choosePaths() {
  started_ = true;
  if (run_.isSilent(edge_)) {
    silent_ = anyStaged_ = true;
    std::fill(reach_.begin(), reach_.end(), Reach::kNone);
    return;
  }
  for (std::size_t slot = 0; slot < edge_.inputs.size(); ++slot) {
    reach_[slot] = chooseReach(slot, &address_[slot]);
    (reach_[slot] == Reach::kNone ? anyStaged_ : anyExposed_) = true;
  }
}

// Reading pays per run: tensors that would be read in short runs are staged instead. And what arrives later cannot be combined with what is
// here now without keeping it, so over a wire the peer's combines get frames. So does what is cast to a narrower type: it is cast here, and
// fewer bytes go over the wire.
Reach SendEdge::chooseReach(std::size_t slot, RemoteAddress* address) {
  PeerExposure& peer = run_.context().connection(edge_.peer);
  const ReadLimits limits = peer.readLimits();
  const TensorView& view = run_.input(edge_.inputs[slot]);
  if (limits.isWire && (isNarrowed(slot) || isCombined(slot) || !isWorthReading(slot, edge_.numCopies, limits.minRunBytes))) {
    return Reach::kNone;  // before expose(), which may cost a registration
  }
  const std::size_t extent = extentBytes(view);
  if (run_.staging != nullptr && !run_.staging->isReady(view.bytes, extent)) {
    return Reach::kNone;  // what still comes from a device goes on in pieces, as it comes
  }
  const Reach reach = peer.expose(view.bytes, extent, address);
  return reach == Reach::kCopy && !isWorthReading(slot, edge_.count, limits.minRunBytes) ? Reach::kNone : reach;
}

bool SendEdge::isWorthReading(std::size_t slot, std::uint32_t numItems, std::size_t minRunBytes) const {
  const TensorView& view = run_.input(edge_.inputs[slot]);
  const std::size_t elemBytes = elementBytes(view.dtype);
  std::size_t bytes = 0;
  std::uint64_t runs = 0;
  for (std::uint32_t i = 0; i < numItems; ++i) {
    if (item(i).slot == static_cast<std::int32_t>(slot)) {
      runs += countRuns(boxOf(view, item(i).offset), item(i).shape, elemBytes);
      bytes += static_cast<std::size_t>(numElements(item(i).shape)) * elemBytes;
    }
  }
  return bytes >= minRunBytes * runs;
}

bool SendEdge::isCombined(std::size_t slot) const {
  const auto items = std::span(run_.plan.sendItems).subspan(edge_.first + edge_.numCopies, edge_.count - edge_.numCopies);
  return std::any_of(items.begin(), items.end(), [&](const PlanSendItem& each) { return each.slot == static_cast<std::int32_t>(slot); });
}

void SendEdge::conceal() {
  for (std::size_t slot = 0; slot < reach_.size(); ++slot) {
    if (reach_[slot] == Reach::kFetch) {
      run_.context().connection(edge_.peer).conceal(address_[slot]);
    }
  }
}

// ---- posts

bool SendEdge::postSlots() {
  PeerFrames& peer = run_.context().connection(edge_.peer);
  bool moved = false;
  const auto slotBytes = [&](std::uint32_t slot) { return postedSlotBytes(run_.input(edge_.inputs[slot]).shape.size()); };
  while (slotsPosted_ < edge_.inputs.size()) {
    std::uint32_t end = slotsPosted_;
    std::size_t bytes = kHeadBytes<PostFrame>;
    while (end < edge_.inputs.size() && bytes + slotBytes(end) <= peer.maxFrameBytes(Lane::kControl)) {
      bytes += slotBytes(end++);
    }
    const auto frame = peer.reserve(Lane::kControl, bytes, bytes);
    if (frame.empty()) {
      return moved;
    }
    writeFrame(frame,
               PostFrame{.operation = run_.tag(), .edgeBytes = edge_.bytes, .firstSlot = slotsPosted_, .numSlots = end - slotsPosted_},
               bytes - kHeadBytes<PostFrame>);
    std::byte* out = frame.data() + kHeadBytes<PostFrame>;
    for (; slotsPosted_ < end; ++slotsPosted_) {
      const TensorView& view = run_.input(edge_.inputs[slotsPosted_]);
      Dims byteStrides = view.strides;
      std::for_each(byteStrides.begin(), byteStrides.end(),
                    [&](std::int64_t& stride) { stride *= static_cast<std::int64_t>(elementBytes(view.dtype)); });
      out = writePostedSlot(out, {reach_[slotsPosted_], address_[slotsPosted_], byteStrides});
    }
    peer.commit(Lane::kControl, bytes);
    moved = true;
  }
  return moved;
}

// ---- staged bytes

// Goes to the next group with anything to be staged; false when there is none.
bool SendEdge::openGroup() {
  for (; first_ < edge_.count; first_ = groupEnd_) {
    bool staged = isStaged(item(first_));
    for (groupEnd_ = first_ + 1; groupEnd_ < edge_.count && item(groupEnd_).withPrevious; ++groupEnd_) {
      staged |= isStaged(item(groupEnd_));
    }
    if (staged) {
      cursor_ = SegmentCursor(item(first_).shape, elementBytes(item(first_).stagedDtype), run_.context().segmentBytes);
      inGroup_ = first_;
      return true;
    }
  }
  return false;
}

void SendEdge::commitFrame() {
  if (frame_.empty()) {
    return;
  }
  const StagedFrame fields{
      .operation = run_.tag(), .segmentBytes = static_cast<std::uint32_t>(run_.context().segmentBytes), .isAll = silent_ ? 1u : 0u};
  writeFrame(frame_, fields, filled_ - kStagedHead);
  run_.context().connection(edge_.peer).commit(Lane::kBulk, filled_);
  frame_ = {};
}

// Room for so many more bytes, in the frame being filled or in a new one.
bool SendEdge::makeRoom(std::size_t bytes) {
  if (!frame_.empty() && frame_.size() >= filled_ + bytes) {
    return true;
  }
  commitFrame();
  const std::size_t segmentBytes = run_.context().segmentBytes;
  // A short edge takes no more of the ring than it needs.
  const std::size_t wanted = kStagedHead + std::min<std::size_t>(segmentBytes, edge_.bytes);
  // What fits one frame comes in one: a peer whose whole plan is short takes nothing else.
  const bool inOneFrame = silent_ && edge_.bytes <= segmentBytes;
  frame_ = run_.context()
               .connection(edge_.peer)
               .reserve(Lane::kBulk, inOneFrame ? wanted : kStagedHead + bytes, std::max(wanted, kStagedHead + bytes));
  filled_ = kStagedHead;
  return !frame_.empty();
}

bool SendEdge::packSome() {
  const StoreHint hint = edge_.bytes >= kStreamFrom ? StoreHint::kStream : StoreHint::kCached;
  bool moved = false;
  while (!cursor_.done() || openGroup()) {
    for (; inGroup_ < groupEnd_; ++inGroup_) {
      if (!isStaged(item(inGroup_))) {
        continue;
      }
      const TensorView& view = run_.input(item(inGroup_).input);
      const std::size_t elemBytes = elementBytes(view.dtype);
      const StridedBox box = boxOf(view, sumOf(item(inGroup_).offset, cursor_.offset()));
      if (!run_.isReady(box, cursor_.shape(), elemBytes) || !makeRoom(cursor_.bytes())) {
        return moved;
      }
      filled_ += packCastBox(frame_.data() + filled_, item(inGroup_).stagedDtype, box, view.dtype, cursor_.shape(), hint);
      moved = true;
    }
    inGroup_ = first_;
    cursor_.next();
    if (cursor_.done()) {
      first_ = groupEnd_;
    }
  }
  commitFrame();
  return moved;
}

}  // namespace shardwire::internal
