// A combine needs the same segment of all sources at once. The sources are gathered one after the other, in the plan's
// order. When the last source is there the segment is reduced in rank order, straight into the output, so every rank
// and every run gives the same bits. Sources in memory are used in place, staged sources in the frame. Sources to be
// read by a system call are read into scratch at the end, when nothing else can delay the reduction. Only for a peer
// with two sources in one combine the first source is copied aside, since the second lies behind the first in the same
// lane.
#include "backend/exec/combiner.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "ops/boxes/reduce_box.h"

namespace shardwire::internal {

Combiner::Combiner(const RunScope& run, RemoteReads& reads, const std::vector<ReceiveEdge*>& receiveFrom)
    : run_(run), reads_(reads), receiveFrom_(receiveFrom) {
  std::uint32_t most = 0;
  for (const PlanMove& move : run_.plan.moves) {
    most = std::max(most, move.numSources);
  }
  boxes_.resize(most);
}

void Combiner::reset() {
  next_ = ready_ = 0;
  cursorOpen_ = false;
  heldBytes_ = 0;
}

bool Combiner::step() {
  std::size_t budget = kCopySegment;
  bool moved = false;
  while (!isDone() && budget > 0) {
    const PlanMove& move = run_.plan.moves[run_.plan.firstCombine + next_];
    if (!cursorOpen_) {
      open(move);
    }
    const std::size_t elemBytes = run_.elemBytesOf(move);
    const StridedBox to = run_.outputBox(move, cursor_.offset());
    if (!run_.isReady(to, cursor_.shape(), elemBytes) || !gather(move) || !readCopied(move)) {
      return moved;
    }
    if (!reduce(move, to)) {
      return moved;
    }
    run_.wrote(to, cursor_.shape(), elemBytes);
    consume(move);
    moved = true;
    budget -= std::min(budget, cursor_.bytes());
    ready_ = 0;
    heldBytes_ = 0;
    cursor_.next();
    if (cursor_.done()) {
      cursorOpen_ = false;
      ++next_;
    }
  }
  return moved;
}

// False: a peer of this process, whose memory is a source, failed.
bool Combiner::reduce(const PlanMove& move, const StridedBox& to) {
  owners_.clear();
  for (std::uint32_t i = 0; i < move.numSources; ++i) {
    const PlanSource& source = this->source(move, i);
    if (isReached(source, Reach::kDirect)) {
      if (PeerReads& owner = run_.context().connection(source.rank); owner.readersLock() != nullptr) {
        owners_.push_back(&owner);
      }
    }
  }
  // Takes each lock once, and in one order for all ranks of the process: some threads hold several locks.
  const auto byLock = [](PeerReads* a, PeerReads* b) { return std::less<>()(a->readersLock(), b->readersLock()); };
  std::sort(owners_.begin(), owners_.end(), byLock);
  owners_.erase(std::unique(owners_.begin(), owners_.end()), owners_.end());
  readings_.clear();
  bool isAllowed = true;
  for (PeerReads* const owner : owners_) {
    isAllowed = readings_.emplace_back(*owner).isAllowed() && isAllowed;
  }
  if (isAllowed) {
    reduceBox(to, run_.dtypeOf(move), std::span(boxes_).first(move.numSources), cursor_.shape(), move.sourceDtype,
              move.reduction, run_.hint);
  }
  readings_.clear();
  return isAllowed;
}

void Combiner::open(const PlanMove& move) {
  cursor_ = SegmentCursor(move.shape, elementBytes(move.sourceDtype), run_.context().segmentBytes);
  cursorOpen_ = true;
  ready_ = 0;
  heldBytes_ = 0;
}

bool Combiner::gather(const PlanMove& move) {
  while (ready_ < move.numSources && gatherOne(move, ready_)) {
    ++ready_;
  }
  return ready_ == move.numSources;
}

bool Combiner::gatherOne(const PlanMove& move, std::uint32_t index) {
  const PlanSource& source = this->source(move, index);
  const Dims offset = sumOf(source.offset, cursor_.offset());
  StridedBox& box = boxes_[index];
  if (isOwn(source)) {
    box = boxOf(run_.input(source.input), offset);
    return run_.isReady(box, cursor_.shape(), elementBytes(move.sourceDtype));
  }
  ReceiveEdge& edge = edgeOf(source);
  if (!edge.isReadable()) {
    return false;
  }
  switch (edge.reachOf(source.slot)) {
    case Reach::kDirect:
      box = edge.directBox(source.slot, offset);
      return true;
    case Reach::kCopy:
      return true;  // readCopied
    case Reach::kFetch:
      // See SendEdge::chooseReach.
      run_.context().fail({StatusCode::kInternal, fmt::format("rank {} offered fetches of what {} combines",
                                                              edge.peer(), run_.activity.description.text())});
      return false;
    case Reach::kNone:
      break;
  }
  const std::size_t bytes = cursor_.bytes();
  const std::byte* packed = edge.areCopiesDone() ? edge.staged(bytes) : nullptr;
  if (packed == nullptr) {
    return false;
  }
  if (appearsLater(move, index)) {
    // The peer's next source of this combine is behind this source: keep this source apart. Most runs never come here.
    // The first kept source makes room for the whole segment, so no kept source moves later.
    if (held_.size() < move.numSources * bytes) {
      held_.resize(move.numSources * bytes);
    }
    std::byte* const copy = held_.data() + heldBytes_;
    std::copy_n(packed, bytes, copy);
    heldBytes_ += bytes;
    edge.consume(bytes);
    packed = copy;
  }
  box = packedBox(packed, cursor_.shape(), elementBytes(move.sourceDtype));
  return true;
}

bool Combiner::appearsLater(const PlanMove& move, std::uint32_t index) const {
  const Rank rank = source(move, index).rank;
  for (std::uint32_t i = index + 1; i < move.numSources; ++i) {
    if (source(move, i).rank == rank) {
      return true;
    }
  }
  return false;
}

bool Combiner::readCopied(const PlanMove& move) {
  std::size_t copied = 0;
  for (std::uint32_t i = 0; i < move.numSources; ++i) {
    copied += isReached(source(move, i), Reach::kCopy) ? 1 : 0;
  }
  if (copied == 0) {
    return true;
  }
  // RemoteReads may use the beginning of the scratch to unpack, but packed destinations never need to unpack.
  std::byte* next = run_.context().scratch(copied * cursor_.bytes()).data();
  const Dims strides = packedByteStrides(cursor_.shape(), elementBytes(move.sourceDtype));
  for (std::uint32_t i = 0; i < move.numSources; ++i) {
    const PlanSource& source = this->source(move, i);
    if (!isReached(source, Reach::kCopy)) {
      continue;
    }
    ReceiveEdge& edge = edgeOf(source);
    const Dims offset = sumOf(source.offset, cursor_.offset());
    boxes_[i] = {next, strides};
    const RemoteBox box{edge.input(source.slot), offset, cursor_.shape(), move.sourceDtype};
    if (Status status = reads_.copy(run_.context().connection(edge.peer()), boxes_[i], move.sourceDtype, box);
        !status.isOk()) {
      edge.refuseRead(std::move(status));
      return false;
    }
    next += cursor_.bytes();
  }
  return true;
}

void Combiner::consume(const PlanMove& move) {
  for (std::uint32_t i = 0; i < move.numSources; ++i) {
    if (isReached(source(move, i), Reach::kNone) && !appearsLater(move, i)) {
      edgeOf(source(move, i)).consume(cursor_.bytes());
    }
  }
}

}  // namespace shardwire::internal
