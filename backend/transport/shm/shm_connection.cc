// One peer over shared memory: this rank writes into its slot of the peer's inbox and reads from the peer's slot of its
// own inbox, by one ring for each lane. The constructor announces this rank in the peer's inbox, and readAnnouncement()
// reads the peer's announcement here: whether the peer can read this rank's ordinary memory, and whether the peer has
// mapped this rank's heap. From this expose() chooses how the peer reads a tensor. A peer's death shows in its liveness
// mark, or, before the peer has set the mark, in the link's socket. A peer that leaves normally announces this before
// hanging up.
#include "backend/transport/shm/shm_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/transport/shm/cross_memory.h"
#include "backend/transport/shm/held_memory.h"
#include "backend/transport/shm/shm_fabric.h"

namespace shardwire::internal {
namespace {

// A look at the socket costs a system call; the liveness mark reports a death sooner, except for a peer that has not
// set the mark yet.
constexpr Duration kSocketLookEvery = std::chrono::milliseconds(5);
// Below this average run, reading another process's memory costs more in page look-ups than packing does.
constexpr std::size_t kMinReadRun = 2048;
// On a Xeon (docs/benchmarks.md, "What was learned") staging was faster for shorter balanced exchanges
// of combined bytes, for longer messages, for all that flows one way, and for edges larger than the caches, where the
// kernel's copy reads the destination before it writes there.
constexpr std::size_t kMinCombinedRead = std::size_t{1} << 20;
constexpr std::size_t kMaxEdgeRead = std::size_t{12} << 20;

// The part of each ring that short frames use: fits the caches of both cores.
constexpr std::size_t kRewindFrom = std::size_t{64} << 10;

constexpr std::array<const char*, kNumLanes> kLaneNames = {"control", "bulk", "point"};

}  // namespace

ShmConnection::ShmConnection(ShmJoint joint) : joint_(std::move(joint)) {
  const InboxSlot out = joint_.theirs->slot(joint_.self);
  const InboxSlot in = joint_.mine->slot(joint_.peer);
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    writers_[indexOf(lane)] =
        RingWriter(out.words(lane), out.laneData(lane), out.laneBytes[indexOf(lane)], Publish::kHeader, kRewindFrom);
    readers_[indexOf(lane)] =
        RingReader(in.words(lane), in.laneData(lane), in.laneBytes[indexOf(lane)], Publish::kHeader);
    maxFrameBytes_[indexOf(lane)] = maxLaneFrameBytes(out.laneBytes[indexOf(lane)]);
  }
  SlotReader& sign = mySign();
  sign.process = joint_.mine->fabric()->address().process;
  sign.readGBps = joint_.readGBps;
  writeText(sign.reason, joint_.whyNoReads);
  writeText(sign.whyNoHeap, joint_.isSameProcess() ? "" : joint_.link->whyNoHeap());
  sign.state.store(static_cast<std::uint32_t>(ReaderState::kHere), std::memory_order_seq_cst);
  joint_.theirs->announce(joint_.self);
}

ShmConnection::~ShmConnection() {
  joint_.mine->markLeft();  // before the link's socket hangs up, so the peer does not take the hang-up for a death
  mySign().state.store(static_cast<std::uint32_t>(ReaderState::kGone), std::memory_order_seq_cst);
}

bool ShmConnection::readAnnouncement() {
  const SlotReader& sign = *joint_.mine->slot(joint_.peer).reader();
  if (isAnnounced_ || sign.state.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(ReaderState::kNone)) {
    return isAnnounced_;
  }
  isAnnounced_ = true;
  peersReads_ = {sign.readGBps > 0 ? sign.readGBps : 0, readText(sign.reason)};
  joint_.peerReadsMe = peersReads_.gbps > 0;
  joint_.whyPeerHasNoHeap = readText(sign.whyNoHeap);
  return true;
}

void ShmConnection::commit(Lane lane, std::size_t bytes) {
  writers_[indexOf(lane)].commit(bytes);
  joint_.theirs->ringIfArmed();
}

void ShmConnection::release(Lane lane) {
  const bool awaitsRoom = readers_[indexOf(lane)].release();
  writers_[indexOf(lane)].noteAnswer();
  if (awaitsRoom) {
    joint_.theirs->ringIfArmed();
  }
}

ReadLimits ShmConnection::readLimits() const {
  if (joint_.isForced || joint_.isSameProcess()) {
    return {.minRunBytes = kMinReadRun};
  }
  return {.minRunBytes = kMinReadRun,
          .minCombinedBytes = kMinCombinedRead,
          .maxEdgeBytes = kMaxEdgeRead,
          .stagesOneWay = true,
          .isMeasured = true};
}

Reach ShmConnection::expose(const void* bytes, std::size_t size, RemoteAddress* address) {
  *address = {kVirtualSpace, reinterpret_cast<std::uint64_t>(bytes)};
  if (joint_.isSameProcess()) {
    return joint_.myHeap != nullptr && joint_.myHeap->offsetOf(bytes, size) ? Reach::kDirect : joint_.sameProcessReach;
  }
  if (joint_.myHeap != nullptr && joint_.whyPeerHasNoHeap.empty()) {
    if (const auto offset = joint_.myHeap->offsetOf(bytes, size)) {
      *address = {kHeapSpace, *offset};
      return Reach::kDirect;
    }
  }
  return joint_.peerReadsMe ? Reach::kCopy : Reach::kNone;
}

const std::byte* ShmConnection::map(const RemoteAddress& address, std::size_t size) {
  if (joint_.isSameProcess()) {
    return address.space == kVirtualSpace ? reinterpret_cast<const std::byte*>(address.value) : nullptr;
  }
  const Mapping* const heap = joint_.link == nullptr ? nullptr : joint_.link->heap().get();
  if (address.space != kHeapSpace || heap == nullptr) {
    return nullptr;
  }
  const std::size_t heapBytes = heap->size();
  if (address.value > heapBytes || size > heapBytes - address.value) {
    return nullptr;
  }
  return heap->bytes() + address.value;
}

Result<std::shared_ptr<HeldMemory>> ShmConnection::hold(const HeapPlace& place, std::size_t size) {
  if (joint_.isSameProcess()) {
    return holdOwnProcess(place);
  }
  if (size == 0) {
    return watchPeer(joint_.link);
  }
  const bool isMapped = joint_.link->heap() != nullptr;
  if (!isMapped || !place.isInHeap) {
    const std::string why = isMapped ? "the memory lies outside of its shared heap" : joint_.link->whyNoHeap();
    return Status{StatusCode::kUnsupported, fmt::format("the shared heap of {} is not mapped here{}{}", joint_.who,
                                                        why.empty() ? "" : ": ", why)};
  }
  return holdPeerHeap(joint_.link, joint_.mine->fabric(), place.offset, size, joint_.who);
}

Status ShmConnection::read(std::span<const MemoryRun> runs) {
  if (joint_.isSameProcess()) {
    const DirectRead reading(*this);
    if (!reading.isAllowed()) {
      return {StatusCode::kPeerFailed, fmt::format("{} failed and has its tensors back", joint_.who)};
    }
    for (const MemoryRun& run : runs) {
      std::memcpy(run.local, reinterpret_cast<const std::byte*>(run.remote), run.bytes);
    }
    return Status::ok();
  }
  if (joint_.readGBps == 0) {
    return {StatusCode::kUnsupported,
            fmt::format("the memory of {} cannot be read: {}", joint_.who, joint_.whyNoReads)};
  }
  const Status status = readCrossMemory(joint_.link->pid(), runs, joint_.who.c_str());
  // The peer's pid may belong to another process by now: bytes read count only if the peer still lived afterwards. And
  // unreadable memory mostly belongs to a peer that is ending.
  return joint_.theirs->ownerDied() ? lookAtPeer() : status;
}

bool ShmConnection::stopFetches() {
  joint_.mine->markWithdrawn();
  return true;
}

// A peer's memory stays as long as the peer knows that this rank is there. The peer may have left before it knew, and
// this rank may have missed the last sign: memory given back reads like the memory of a rank at work.
bool ShmConnection::hasLeft() const {
  return joint_.theirs->ownerLeft() || joint_.theirs->isGivenBack();
}

Status ShmConnection::lookAtPeer() {
  if (hasLeft()) {
    return {StatusCode::kPeerFailed, fmt::format("{} left the group", joint_.who)};
  }
  if (joint_.theirs->ownerDied()) {
    return {StatusCode::kPeerFailed, fmt::format("{} died", joint_.who)};
  }
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    if (writers_[indexOf(lane)].isBroken() || readers_[indexOf(lane)].isBroken()) {
      return {StatusCode::kPeerFailed,
              fmt::format("the {} ring shared with {} is corrupt: a stray write on one of the two sides",
                          kLaneNames[indexOf(lane)], joint_.who)};
    }
  }
  const Deadline now = Clock::now();
  if (now < nextSocketLook_) {
    return Status::ok();
  }
  nextSocketLook_ = now + kSocketLookEvery;
  if (joint_.isSameProcess() || !joint_.link->isHungUp()) {
    return Status::ok();
  }
  // A peer that exits normally announces this before hanging up, perhaps between our two looks.
  return {StatusCode::kPeerFailed, fmt::format("{} {}", joint_.who, hasLeft() ? "left the group" : "died")};
}

Status ShmConnection::health() {
  if (failure_.isOk()) {
    failure_ = lookAtPeer();
  }
  return failure_;
}

std::string ShmConnection::describe() const {
  if (joint_.isSameProcess()) {
    return fmt::format("rank {}: shm, same process", joint_.peer);
  }
  std::string heap = joint_.link->heap() != nullptr ? ""
                     : joint_.link->whyNoHeap().empty()
                         ? ", no shared heap"
                         : fmt::format(", its shared heap is not mapped here ({})", joint_.link->whyNoHeap());
  if (!joint_.whyPeerHasNoHeap.empty()) {
    heap += fmt::format(", this rank's shared heap is not mapped there ({})", joint_.whyPeerHasNoHeap);
  }
  if (joint_.readGBps == 0) {
    return fmt::format("rank {}: shm{}, ordinary memory staged ({})", joint_.peer, heap, joint_.whyNoReads);
  }
  return fmt::format("rank {}: shm{}, cross-memory reads {:.1f} GB/s", joint_.peer, heap, joint_.readGBps);
}

}  // namespace shardwire::internal
