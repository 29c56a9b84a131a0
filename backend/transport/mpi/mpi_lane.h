// The memory of one lane at its two ends: the place of each message, and the free room at the peer's end. Pure
// bookkeeping.
//
// Both ends place messages by one rule: messages follow each other in whole granules. A message may extend past the end
// of the memory's capacity, into a spare part as long as the longest message; the next message then starts at the
// front. Since no more than the capacity is ever in use, a message never overlaps an older message.
//
// The receiving end has room for a longest message more than the sending end fills: a receive is posted all the time.
// Each sent message arrives as soon as the peer's process polls, whether or not the peer's caller takes the frames.
// Threads: as Connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/transport/lanes.h"

namespace shardwire::internal {

// In front of each message's frame: see MpiHead.
inline constexpr std::size_t kMpiHeadBytes = 16;

struct LaneMemory {
  LaneMemory(std::size_t capacity, std::size_t maxFrame);
  static constexpr std::size_t kGranule = 64;
  static std::size_t granules(std::size_t messageBytes) { return (messageBytes + kGranule - 1) / kGranule * kGranule; }

  std::size_t capacity;
  std::size_t maxMessage;  // in whole granules
  std::unique_ptr<std::byte[]> bytes;
};

// The sending end. Memory is free again once MPI has sent the message and the peer has released it.
class MpiLaneWriter {
 public:
  explicit MpiLaneWriter(std::size_t capacity)
      : memory_(capacity, maxLaneFrameBytes(capacity)), maxFrame_(maxLaneFrameBytes(capacity)) {}

  // Room for a frame, behind its head; empty when there is none.
  std::span<std::byte> reserve(std::size_t minBytes, std::size_t maxBytes);
  // Returns the reserved message, cut to a frame of this many bytes; the caller sends the message as number *number.
  std::span<std::byte> commit(std::size_t frameBytes, std::uint32_t* number);
  void sent(std::uint32_t number);
  // The peer released this many bytes of the lane in all, modulo 2^32. False: an impossible count.
  bool releasedByPeer(std::uint32_t total);

  std::uint64_t totalBytes() const { return committed_; }
  // Leaks the memory, which MPI may still read.
  void abandon() { static_cast<void>(memory_.bytes.release()); }

 private:
  static constexpr std::uint32_t kMostInFlight = 256;

  LaneMemory memory_;
  std::size_t maxFrame_;
  std::size_t offset_ = 0;       // of the next message
  std::uint64_t committed_ = 0;  // granule bytes, ever
  std::uint64_t released_ = 0;   // by the peer
  std::uint64_t sent_ = 0;       // by MPI, without a gap
  std::uint32_t oldest_ = 0;     // number of the oldest message that MPI has not sent
  std::uint32_t next_ = 0;
  struct InFlight {
    std::uint64_t end = 0;  // committed_ after this message
    bool isSent = false;
  };
  std::array<InFlight, kMostInFlight> inFlight_;
};

// The receiving end: one receive is posted, for a message of any length.
class MpiLaneReader {
 public:
  // `capacity`: of the peer's writer.
  explicit MpiLaneReader(std::size_t capacity)
      : capacity_(capacity),
        memory_(capacity + LaneMemory::granules(kMpiHeadBytes + maxLaneFrameBytes(capacity)),
                maxLaneFrameBytes(capacity)) {}

  // Room to receive the next message; empty while a receive is posted, or when the peer sent more than it may.
  std::span<std::byte> post();
  // The received message, head and frame. arrived() then makes the frame visible to peek().
  std::span<const std::byte> received(std::size_t messageBytes) const {
    return {memory_.bytes.get() + nextOffset_, messageBytes};
  }
  void arrived(std::size_t messageBytes);
  void cancelled() { isPosted_ = false; }

  std::span<const std::byte> peek() const;  // the oldest frame, without its head
  void release();

  std::uint64_t receivedBytes() const { return received_; }
  std::uint64_t releasedBytes() const { return released_; }
  std::size_t capacity() const { return capacity_; }
  void abandon() { static_cast<void>(memory_.bytes.release()); }

 private:
  void advance(std::size_t* offset, std::size_t granuleBytes) const;

  std::size_t capacity_;
  LaneMemory memory_;
  std::size_t nextOffset_ = 0;   // of the next message
  std::size_t firstOffset_ = 0;  // of the oldest message
  std::uint64_t received_ = 0;   // granule bytes, ever
  std::uint64_t released_ = 0;
  bool isPosted_ = false;
};

}  // namespace shardwire::internal
