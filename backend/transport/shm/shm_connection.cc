#include "backend/transport/shm/shm_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/transport/shm/cross_memory.h"
#include "backend/transport/shm/unix_socket.h"

namespace shardwire::internal {
namespace {

// The socket costs a system call to look at; the liveness mark tells sooner in all cases but a peer that has not set it yet.
constexpr Duration kSocketLookEvery = std::chrono::milliseconds(5);
// Below this average run, reading another process's memory costs more in page look-ups than packing does.
constexpr std::size_t kMinReadRun = 2048;

std::size_t index(Lane lane) {
  return static_cast<std::size_t>(lane);
}

constexpr std::array<const char*, kNumLanes> kLaneNames = {"control", "bulk", "point"};

}  // namespace

ShmConnection::ShmConnection(ShmLink link) : link_(std::move(link)) {
  const InboxSlot out = link_.theirs->slot(link_.self);
  const InboxSlot in = link_.mine->slot(link_.peer);
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    writers_[index(lane)] = RingWriter(out.words(lane), out.laneData(lane), out.laneBytes[index(lane)]);
    readers_[index(lane)] = RingReader(in.words(lane), in.laneData(lane), in.laneBytes[index(lane)]);
    maxFrameBytes_[index(lane)] = maxRingFrameBytes(out.laneBytes[index(lane)]);
  }
}

ShmConnection::~ShmConnection() {
  link_.mine->markLeft();  // before the socket hangs up, so that the peer does not take it for death
}

std::span<std::byte> ShmConnection::reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) {
  return writers_[index(lane)].reserve(minBytes, maxBytes);
}

void ShmConnection::commit(Lane lane, std::size_t bytes) {
  writers_[index(lane)].commit(bytes);
  link_.theirs->ringIfArmed();
}

std::size_t ShmConnection::maxFrameBytes(Lane lane) const {
  return maxFrameBytes_[index(lane)];
}

std::span<const std::byte> ShmConnection::peek(Lane lane) {
  return readers_[index(lane)].peek();
}

void ShmConnection::release(Lane lane) {
  readers_[index(lane)].release();
  link_.theirs->ringIfArmed();
}

ReadLimits ShmConnection::readLimits() const {
  return {.minEdgeBytes = 0, .minRunBytes = kMinReadRun};
}

Reach ShmConnection::expose(const void* bytes, std::size_t size, RemoteAddress* address) {
  *address = {kVirtualSpace, reinterpret_cast<std::uint64_t>(bytes)};
  if (link_.sameProcess) {
    return link_.myHeap != nullptr && link_.myHeap->offsetOf(bytes, size) ? Reach::kDirect : link_.sameProcessReach;
  }
  if (link_.myHeap != nullptr) {
    if (const auto offset = link_.myHeap->offsetOf(bytes, size)) {
      *address = {kHeapSpace, *offset};
      return Reach::kDirect;
    }
  }
  return link_.peerReadsMe ? Reach::kCopy : Reach::kNone;
}

const std::byte* ShmConnection::map(const RemoteAddress& address, std::size_t size) {
  if (link_.sameProcess) {
    return address.space == kVirtualSpace ? reinterpret_cast<const std::byte*>(address.value) : nullptr;
  }
  if (address.space != kHeapSpace || link_.peerHeap == nullptr) {
    return nullptr;
  }
  const std::size_t heapBytes = link_.peerHeap->size();
  if (address.value > heapBytes || size > heapBytes - address.value) {
    return nullptr;
  }
  return link_.peerHeap->bytes() + address.value;
}

Status ShmConnection::read(std::span<const MemoryRun> runs) {
  if (link_.sameProcess) {
    for (const MemoryRun& run : runs) {
      std::memcpy(run.local, reinterpret_cast<const std::byte*>(run.remote), run.bytes);
    }
    return Status::ok();
  }
  if (link_.readGBps == 0) {
    return {StatusCode::kUnsupported, fmt::format("the memory of {} cannot be read: {}", link_.who, link_.whyNoReads)};
  }
  SW_RETURN_IF_ERROR(readCrossMemory(link_.pid, runs, link_.who.c_str()));
  // Its pid may have been another process's by now: what was read counts only if the peer still lived afterwards.
  return link_.theirs->ownerDied() ? lookAtPeer() : Status::ok();
}

Status ShmConnection::lookAtPeer() {
  if (link_.theirs->ownerLeft()) {
    return {StatusCode::kPeerFailed, fmt::format("{} left the group", link_.who)};
  }
  if (link_.theirs->ownerDied()) {
    return {StatusCode::kPeerFailed, fmt::format("{} died", link_.who)};
  }
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    if (writers_[index(lane)].isBroken() || readers_[index(lane)].isBroken()) {
      return {StatusCode::kPeerFailed, fmt::format("the {} ring shared with {} is corrupt: a stray write on one of the two sides",
                                                   kLaneNames[index(lane)], link_.who)};
    }
  }
  const Deadline now = Clock::now();
  if (now < nextSocketLook_) {
    return Status::ok();
  }
  nextSocketLook_ = now + kSocketLookEvery;
  if (!isHungUp(link_.socket)) {
    return Status::ok();
  }
  // An orderly peer says that it leaves before it hangs up, perhaps between our two looks.
  return {StatusCode::kPeerFailed, fmt::format("{} {}", link_.who, link_.theirs->ownerLeft() ? "left the group" : "died")};
}

Status ShmConnection::health() {
  if (failure_.isOk()) {
    failure_ = lookAtPeer();
  }
  return failure_;
}

std::string ShmConnection::describe() const {
  if (link_.sameProcess) {
    return fmt::format("rank {}: shm, same process", link_.peer);
  }
  const char* heap = link_.peerHeap != nullptr ? "" : ", no shared heap";
  if (link_.readGBps == 0) {
    return fmt::format("rank {}: shm{}, ordinary memory staged ({})", link_.peer, heap, link_.whyNoReads);
  }
  return fmt::format("rank {}: shm{}, cross-memory reads {:.1f} GB/s", link_.peer, heap, link_.readGBps);
}

}  // namespace shardwire::internal
