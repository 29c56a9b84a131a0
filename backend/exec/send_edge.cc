// The sender chooses a path for each input of the edge. Either the peer reads the input in this rank's memory (then the
// edge is over when the peer acknowledges), or this rank packs the input into the peer's ring (then the edge is over
// when the last frame is committed). Post frames announce all choices; a short edge is staged as a whole and posts
// nothing. Boxes are packed in the plan's order, cut into segments; boxes to be combined with each other by the peer (a
// group) go segment by segment in turn. Only one operation at a time packs for a peer: frames of the bulk lane come in
// the order of the operations.
#include "backend/exec/send_edge.h"

#include <algorithm>

#include "ops/boxes/cast_box.h"

namespace shardwire::internal {

namespace {

constexpr std::size_t kStagedHead = kHeadBytes<StagedFrame>;

}  // namespace

SendEdge::SendEdge(const RunScope& run, const PlanEdge& edge)
    : run_(run),
      edge_(edge),
      isNarrowed_(edge.inputs.size()),
      reach_(edge.inputs.size()),
      address_(edge.inputs.size()) {
  for (std::uint32_t i = 0; i < edge.count; ++i) {
    const DType dtype = run.plan.inputs[static_cast<std::size_t>(item(i).input)].dtype;
    if (elementBytes(item(i).stagedDtype) < elementBytes(dtype)) {
      isNarrowed_[static_cast<std::size_t>(item(i).slot)] = true;
    }
  }
}

void SendEdge::reset() {
  started_ = silent_ = anyExposed_ = anyStaged_ = acked_ = done_ = false;
  readsMeasured_ = stagesMeasured_ = false;
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

// The costs of reading grow with the number of runs: a tensor with short runs is staged instead. Over a wire the peer's
// combines get frames: fetched bytes arrive later, and the peer would have to keep the bytes of the other sources until
// then. A tensor to be cast to a narrower type is staged, too: this rank casts, and fewer bytes go over the wire.
Reach SendEdge::chooseReach(std::size_t slot, RemoteAddress* address) {
  PeerExposure& peer = run_.context().connection(edge_.peer);
  const ReadLimits limits = peer.readLimits();
  const TensorView& view = run_.input(edge_.inputs[slot]);
  if (limits.isWire &&
      (isNarrowed(slot) || isCombined(slot) || !isWorthReading(slot, edge_.numCopies, limits.minRunBytes))) {
    return Reach::kNone;  // before expose(), which may cost a registration
  }
  const std::size_t extent = extentBytes(boxOf(view), view.shape, elementBytes(view.dtype));
  if (run_.staging != nullptr && !run_.staging->isReady(view.bytes, extent)) {
    return Reach::kNone;  // bytes still on their way from a device go on in pieces, on arrival
  }
  const Reach reach = peer.expose(view.bytes, extent, address);
  const bool stages =
      reach == Reach::kCopy && (!isWorthReading(slot, edge_.count, limits.minRunBytes) || chooseStaged(slot, limits));
  return stages ? Reach::kNone : reach;
}

bool SendEdge::chooseStaged(std::size_t slot, const ReadLimits& limits) {
  const bool hasCorePerRank = run_.context().hasCorePerRank;
  const bool isOneWay = 2 * edgeBytes(run_.plan.receives) < edge_.bytes && edgeBytes(run_.plan.sends) < 2 * edge_.bytes;
  if (hasCorePerRank && limits.stagesOneWay && isOneWay) {
    return true;
  }
  bool stages = (edge_.bytes < limits.minCombinedBytes && isCombined(slot)) ||
                (hasCorePerRank && edge_.bytes > limits.maxEdgeBytes);
  if (hasCorePerRank && limits.isMeasured) {
    stages = run_.way == OrdinaryWay::kByRule ? stages : run_.way == OrdinaryWay::kStage;
    (stages ? stagesMeasured_ : readsMeasured_) = true;
  }
  return stages;
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
  const auto items =
      std::span(run_.plan.sendItems).subspan(edge_.first + edge_.numCopies, edge_.count - edge_.numCopies);
  return std::any_of(items.begin(), items.end(),
                     [&](const PlanSendItem& each) { return each.slot == static_cast<std::int32_t>(slot); });
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
  const auto slotBytes = [&](std::uint32_t slot) {
    return postedSlotBytes(run_.input(edge_.inputs[slot]).shape.size());
  };
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
               PostFrame{.operation = run_.tag(),
                         .edgeBytes = edge_.bytes,
                         .firstSlot = slotsPosted_,
                         .numSlots = end - slotsPosted_},
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

// Goes to the next group with anything to be staged; false when no group is left.
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
  const StagedFrame fields{.operation = run_.tag(),
                           .segmentBytes = static_cast<std::uint32_t>(run_.context().segmentBytes),
                           .isAll = silent_ ? 1u : 0u};
  writeFrame(frame_, fields, filled_ - kStagedHead);
  run_.context().commitBulk(edge_.peer, filled_);
  frame_ = {};
}

// Makes room for `bytes` more bytes, in the current frame or in a new frame.
bool SendEdge::makeRoom(std::size_t bytes) {
  if (!frame_.empty() && frame_.size() >= filled_ + bytes) {
    return true;
  }
  commitFrame();
  const std::size_t segmentBytes = run_.context().segmentBytes;
  // A short edge takes only the needed bytes of the ring.
  const std::size_t wanted = kStagedHead + std::min<std::size_t>(segmentBytes, edge_.bytes);
  // An edge of at most one frame comes in one frame: a peer whose whole plan is short takes nothing else.
  const bool inOneFrame = silent_ && edge_.bytes <= segmentBytes;
  frame_ = run_.context()
               .connection(edge_.peer)
               .reserve(Lane::kBulk, inOneFrame ? wanted : kStagedHead + bytes, std::max(wanted, kStagedHead + bytes));
  filled_ = kStagedHead;
  return !frame_.empty();
}

bool SendEdge::packSome() {
  const StoreHint hint = stagedHint(edge_.bytes);
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
      filled_ +=
          packCastBox(frame_.data() + filled_, item(inGroup_).stagedDtype, box, view.dtype, cursor_.shape(), hint);
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
