// The frames that engines of two ranks exchange: a fixed 32-byte little-endian header, then the payload. Plain values.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace shardwire::internal {

static_assert(std::endian::native == std::endian::little, "frames are little-endian; add byte swaps before porting");

inline constexpr std::uint8_t kFrameVersion = 1;

enum class FrameKind : std::uint8_t {
  // Control lane, belonging to the operation `seq`:
  kPost = 1,    // payload: PostEntry + strides per input slot; a = first slot, b = number of slots in this frame
  kAck = 2,     // the sender of this frame has read everything of mine that it wanted
  kBlob = 3,    // payload: part of a blob; a = offset, b = total bytes
  kCancel = 4,  // payload: text; the sender gave operation `seq` up (compile_op timed out)
  // Control lane, belonging to the group:
  kFail = 5,    // payload: text; the sender poisoned the group
  kDesync = 6,  // payload: what the sender was doing as operation `seq`; a = 1: an answer is wanted
  // Control lane, point to point: seq = the sender's message number, a = tag (two's complement), fingerprint = bytes of the message
  kSendEager = 7,  // payload: the message
  kSendOffer = 8,  // payload: one PostEntry; the receiver reads it, or asks for it when it must be staged
  kSendGrant = 9,  // the receiver asks for message `seq` on the point lane
  kSendDone = 10,  // the receiver has message `seq`
  // Bulk lane: staged payload of operation `seq`, a = bytes of the longest segment. Point lane: staged payload of message `seq`.
  kBytes = 11,
};

// FrameHeader::flags of kBytes on the bulk lane: no kPost comes with this operation, all of the edge is staged.
inline constexpr std::uint16_t kNoPost = 1;

struct FrameHeader {
  std::uint8_t version = kFrameVersion;
  FrameKind kind = FrameKind::kPost;
  std::uint16_t flags = 0;
  std::uint32_t payloadBytes = 0;
  std::uint64_t seq = 0;
  std::uint64_t fingerprint = 0;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
};
static_assert(sizeof(FrameHeader) == 32);

// How the owner of an input lets a peer at it. On the wire: this, then numDims strides (elements, 8 bytes each).
struct PostEntry {
  std::uint8_t reach = 0;  // Reach; 0: staged
  std::uint8_t numDims = 0;
  std::uint16_t reserved = 0;
  std::uint32_t space = 0;
  std::uint64_t address = 0;
};
static_assert(sizeof(PostEntry) == 16);

inline void writeHeader(std::span<std::byte> frame, const FrameHeader& header) {
  std::memcpy(frame.data(), &header, sizeof header);
}
// Precondition: frame.size() >= sizeof(FrameHeader).
inline FrameHeader readHeader(std::span<const std::byte> frame) {
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  return header;
}

// Payloads that are text.
inline std::string_view textOf(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}
inline std::span<const std::byte> bytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace shardwire::internal
