// The lanes of one RDMA connection: a ring for each lane at both ends, and one queue pair that copies new bytes of a
// sender's ring to the same place in the receiver's ring.
//
//   my out ring of a lane    == RDMA write with immediate ==>    the peer's in ring of the same lane
//   The immediate holds the lane and the number of new bytes. One write carries all unsent frames of the lane, or a
//   single frame without its header; then the receiver writes the header into the ring.
//   The receiver sends credit when a quarter of a ring is released, at the latest at half: an empty lane always has
//   credit for the longest frame.
//
// Each immediate takes one receive that the peer has posted. Writes of frames stay within a window of receives, which
// the peer's returns open again. All other immediates (credits, returns, notes) are bounded by the window and use the
// remaining receives. So a peer that does not poll delays frames, and no write ever reaches a peer without receives.
//
// The rings are the rings of frame_ring.h, with counters that only this end uses. Threads: see Connection.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/base/mapping.h"
#include "backend/transport/frame_ring.h"
#include "backend/transport/rdma/queue_pair.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

// The engine's lanes, and a lane of this transport for requests to fetch.
inline constexpr std::size_t kRequestLane = kNumLanes;
inline constexpr std::size_t kNumWireLanes = kNumLanes + 1;
using LaneBytes = std::array<std::uint64_t, kNumWireLanes>;

// Messages outside of the lanes.
enum class Note : std::uint32_t { kNone = 0, kLeaving = 1, kStopsFetches = 2 };

// Rings for both directions, registered with the device of the first rail.
class FrameMemory {
 public:
  static Result<std::unique_ptr<FrameMemory>> create(RdmaFabric& fabric, const Rail& rail, const LaneBytes& laneBytes);
  ~FrameMemory();
  FrameMemory(const FrameMemory&) = delete;
  FrameMemory& operator=(const FrameMemory&) = delete;

  std::byte* bytes() const { return mapping_.bytes(); }
  const LaneBytes& laneBytes() const { return laneBytes_; }
  std::uint32_t localKey() const { return region_->lkey; }
  std::uint32_t remoteKey() const { return region_->rkey; }
  // Offsets in the memory: the in rings lie first.
  std::size_t inOffset(std::size_t lane) const;
  std::size_t outOffset(std::size_t lane) const { return inOffset(kNumWireLanes) + inOffset(lane); }

 private:
  explicit FrameMemory(const VerbsApi& api) : api_(api) {}

  const VerbsApi& api_;
  Mapping mapping_;
  LaneBytes laneBytes_{};
  ibv_mr* region_ = nullptr;
};

class FrameLanes {
 public:
  static constexpr QueuePairDepth kDepth = {256, 256};

  // `remote`: the peer's FrameMemory, of the same layout.
  FrameLanes(std::unique_ptr<FrameMemory> memory, std::unique_ptr<QueuePair> queue, std::uint64_t remote,
             std::uint32_t remoteKey);

  std::span<std::byte> reserve(std::size_t lane, std::size_t minBytes, std::size_t maxBytes);
  // Sends as many bytes at once as the window and the queue pair permit.
  void commit(std::size_t lane, std::size_t bytes);
  std::size_t maxFrameBytes(std::size_t lane) const { return maxLaneFrameBytes(memory_->laneBytes()[lane]); }
  std::span<const std::byte> peek(std::size_t lane) { return in_[lane].reader.peek(); }
  // True: credit for the peer is due, and the caller should call flush() soon. Not at once, because an answer to the
  // frame may follow, which is more urgent.
  bool release(std::size_t lane);

  // Sends bytes that waited for room. isFlushed(): no bytes wait.
  void flush();
  bool isFlushed() const;
  // Notes do not wait for the window. Requests a completion.
  bool sendNote(Note note);
  // A write of zero bytes, which fails when the peer is dead. Requests a completion.
  bool probe();
  Note onImmediate(std::uint32_t immediate);
  void onSendCompleted(std::uint32_t sequence) { queue_->onSendCompleted(sequence); }
  bool isIdle() const { return queue_->posted() == queue_->completed(); }
  // Empty, or the error: in the peer's bytes, or in posting to the queue pair.
  std::string whatIsBroken() const;
  const QueuePair& queue() const { return *queue_; }

 private:
  struct Out {
    RingWords words{};  // written: by the writer here; released: from the peer's credits
    RingWriter writer;
    std::uint64_t committed = 0;               // == words.written
    std::uint64_t posted = 0;                  // handed to the device
    std::uint64_t announced = 0;               // part of `posted` that is covered by an immediate
    std::uint64_t skipAt = ~std::uint64_t{0};  // position of the newest skip marker that was not posted yet
  };
  struct In {
    RingWords words{};  // written: from the immediates; released: by the reader here
    RingReader reader;
    std::uint64_t credited = 0;  // part of words.released that was sent as credit
  };

  bool flushLane(std::size_t lane);
  // Writes the header of the lane's next frame, `size` bytes with header and padding. False: the size is impossible.
  bool makeHeader(std::size_t lane, std::uint64_t size, std::uint64_t padding);
  void sendCredits();
  bool sendImmediate(std::uint32_t immediate, bool isSignalled);

  std::unique_ptr<FrameMemory> memory_;
  std::unique_ptr<QueuePair> queue_;
  const std::uint64_t remote_;
  const std::uint32_t remoteKey_;
  std::array<Out, kNumWireLanes> out_;
  std::array<In, kNumWireLanes> in_;
  std::uint32_t inWindow_ = 0;  // writes of frames whose receives the peer has not returned
  std::uint32_t toReturn_ = 0;  // the peer's writes of frames that were taken here since the last return
  std::uint32_t toPost_ = 0;    // receives that were taken and not posted again
  bool isBroken_ = false;
};

}  // namespace shardwire::internal
