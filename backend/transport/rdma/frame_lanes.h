// The lanes of one RDMA connection: a ring for each lane at both ends, and one queue pair that carries what is written here to the same
// place there.
//
//   my out ring of a lane    == RDMA write with immediate ==>    the peer's in ring of that lane
//   the immediate says how many bytes of which lane are new; one write carries all frames that lie there by then, or one frame bare of
//   its header, which this end then writes into its ring
//   the peer tells when it has released a quarter of a ring, at the latest half of it: a lane that is empty is known to have room for the
//   longest frame
//
// Each immediate takes one receive that the peer has posted. Writes of frames stay within a window of receives whose return the peer has
// told; what else is told (credits, returns, notes) is bounded by that and has the rest of the receives. So a peer that does not look
// holds back frames, and no queue pair ever finds a peer without receives.
//
// The rings are those of frame_ring.h, with counters that only this end uses. Threads: see Connection.
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

// The engine's lanes and one of our own, for requests to fetch.
inline constexpr std::size_t kRequestLane = kNumLanes;
inline constexpr std::size_t kNumWireLanes = kNumLanes + 1;
using LaneBytes = std::array<std::uint64_t, kNumWireLanes>;

// What a peer says beside frames.
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
  FrameLanes(std::unique_ptr<FrameMemory> memory, std::unique_ptr<QueuePair> queue, std::uint64_t remote, std::uint32_t remoteKey);

  std::span<std::byte> reserve(std::size_t lane, std::size_t minBytes, std::size_t maxBytes);
  // Sends at once as far as that goes.
  void commit(std::size_t lane, std::size_t bytes);
  std::size_t maxFrameBytes(std::size_t lane) const { return maxRingFrameBytes(memory_->laneBytes()[lane]); }
  std::span<const std::byte> peek(std::size_t lane) { return in_[lane].reader.peek(); }
  // Whether the peer should be told soon, by flush(): not now, because an answer to the frame may follow, which is more urgent.
  bool release(std::size_t lane);

  // Sends what waited for room. isFlushed(): nothing waits any more.
  void flush();
  bool isFlushed() const;
  // Notes are not held back by the window. Its completion is asked for.
  bool sendNote(Note note);
  // A write of nothing, which fails when the peer is gone. Its completion is asked for.
  bool probe();
  Note onImmediate(std::uint32_t immediate);
  void onSendCompleted(std::uint32_t sequence) { queue_->onSendCompleted(sequence); }
  bool isIdle() const { return queue_->posted() == queue_->completed(); }
  // Empty, or what is wrong with what the peer sent.
  std::string whatIsBroken() const;
  const QueuePair& queue() const { return *queue_; }

 private:
  struct Out {
    RingWords words{};  // written: by the writer here; released: as the peer told
    RingWriter writer;
    std::uint64_t committed = 0;               // == words.written
    std::uint64_t posted = 0;                  // handed to the device
    std::uint64_t announced = 0;               // of these, covered by an immediate
    std::uint64_t skipAt = ~std::uint64_t{0};  // where the newest skip marker lies that was not posted yet
  };
  struct In {
    RingWords words{};  // written: as the immediates say; released: by the reader here
    RingReader reader;
    std::uint64_t told = 0;  // of words.released
  };

  bool flushLane(std::size_t lane);
  // Where the next frame of the lane lies, `size` bytes with header and padding. False: it cannot lie there.
  bool makeHeader(std::size_t lane, std::uint64_t size, std::uint64_t padding);
  void tellCredits();
  bool sendImmediate(std::uint32_t immediate, bool isSignalled);

  std::unique_ptr<FrameMemory> memory_;
  std::unique_ptr<QueuePair> queue_;
  const std::uint64_t remote_;
  const std::uint32_t remoteKey_;
  std::array<Out, kNumWireLanes> out_;
  std::array<In, kNumWireLanes> in_;
  std::uint32_t inWindow_ = 0;  // writes of frames whose receives the peer has not returned
  std::uint32_t toReturn_ = 0;  // the peer's writes of frames that were taken here since its last return
  std::uint32_t toPost_ = 0;    // receives taken and not posted again
  bool isBroken_ = false;
};

}  // namespace shardwire::internal
