// The frames that engines of two ranks exchange. Each kind has one struct of fields. Only writeFrame and readFrame
// write and read these structs. Plain values, little-endian, fixed width; golden bytes in
// tests/backend/exec/frame_test.cc.
//
//   on the wire: FrameStart (8 bytes) | the fields of the kind | payload
//
// readFrame returns nothing for a frame that is too short, of another kind or version, of another length than
// announced, or with impossible fields: a caller need not check lengths and ranges again. unreadableFrame() describes a
// frame that fits no kind.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backend/transport/transport.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

static_assert(std::endian::native == std::endian::little, "frames are little-endian; add byte swaps before porting");

inline constexpr std::uint8_t kFrameVersion = 5;

enum class FrameKind : std::uint8_t {
  kPost = 1,
  kAck = 2,
  kBlob = 3,
  kCancel = 4,
  kFail = 5,
  kDesync = 6,
  kEager = 7,
  kOffer = 8,
  kGrant = 9,
  kTaken = 10,
  kStaged = 11,
  kAsk = 12,
  kAnswer = 13,
  kAdvice = 14,
  kMessagePart = 15,
  kPut = 16,
  kGet = 17,
  kWord = 18,
  kFlush = 19,
  kReply = 20,
  kDrop = 21,
};
// "post"; "unknown" for any other value.
std::string_view frameKindName(FrameKind kind);

// The first bytes of every frame.
struct FrameStart {
  std::uint8_t version = kFrameVersion;
  FrameKind kind = FrameKind::kPost;
  std::uint16_t reserved = 0;
  std::uint32_t payloadBytes = 0;  // behind the fields
};
static_assert(sizeof(FrameStart) == 8);

using Payload = std::span<const std::byte>;

// Identifies an operation of the group: the number in the group's order, and a hash of the operation's content, so that
// another operation under the same number is noticed.
struct OperationTag {
  std::uint64_t seq = 0;
  std::uint64_t fingerprint = 0;
};

// ---- control lane, about one operation

// States how to reach the sender's inputs, for some of the edge's slots in their order. Payload: numSlots times a slot
// (PostedSlot).
struct PostFrame {
  static constexpr FrameKind kKind = FrameKind::kPost;
  OperationTag operation;
  std::uint64_t edgeBytes = 0;  // moved by the edge in all
  std::uint32_t firstSlot = 0;
  std::uint32_t numSlots = 0;
  bool isSound(Payload payload) const;
};
// The sender of this frame has read all that it needs from the receiver's memory.
struct AckFrame {
  static constexpr FrameKind kKind = FrameKind::kAck;
  OperationTag operation;
  bool isSound(Payload payload) const { return payload.empty(); }
};
// Payload: the part of a blob from `offset` on; the operation knows the meaning of the blob.
struct BlobFrame {
  static constexpr FrameKind kKind = FrameKind::kBlob;
  OperationTag operation;
  std::uint64_t offset = 0;
  std::uint64_t totalBytes = 0;
  bool isSound(Payload payload) const;
};
// A rank gave the operation up. Payload: the reason.
struct CancelFrame {
  static constexpr FrameKind kKind = FrameKind::kCancel;
  static constexpr std::uint32_t kSender = ~std::uint32_t{0};
  OperationTag operation;
  // The rank that gave up, where the sender passes on another rank's cancel; the taker of the frame checks the range.
  std::uint32_t origin = kSender;
  std::uint32_t reserved = 0;
  bool isSound(Payload) const { return true; }
};

// ---- control lane, about the group

// The sender poisoned the group, or a rank revoked the group. Payload: the reason.
struct FailFrame {
  static constexpr FrameKind kKind = FrameKind::kFail;
  std::uint32_t code = 0;       // StatusCode, not kOk
  std::uint32_t isRevoked = 0;  // 0 or 1; the group may have failed before
  bool isSound(Payload) const;
};
// The ranks disagree about operation `seq`, which belongs to the sender's call `call` (the low 32 bits; 0: too long
// ago, or not called). Payload: the sender's call for this operation.
struct DesyncFrame {
  static constexpr FrameKind kKind = FrameKind::kDesync;
  std::uint64_t seq = 0;
  std::uint32_t wantsAnswer = 0;  // 0 or 1
  std::uint32_t call = 0;
  bool isSound(Payload) const { return wantsAnswer <= 1; }
};

// ---- control lane, of ranks that wait for long: see questions.cc

// The sender waits in this operation (seq 0: in a send or recv), which moves so many bytes between the two.
struct AskFrame {
  static constexpr FrameKind kKind = FrameKind::kAsk;
  OperationTag operation;
  std::uint64_t sends = 0;
  std::uint64_t receives = 0;
  std::uint32_t wantsAnswer = 0;  // 0 or 1: at once
  std::uint32_t reserved = 0;
  bool isSound(Payload payload) const { return wantsAnswer <= 1 && payload.empty(); }
};
// The state of the operation on the rank that was asked.
enum class AskedState : std::uint32_t { kNotCalled = 0, kInFlight = 1, kOver = 2 };
// Payload: `numAwaited` ranks that keep the sender waiting, 4 bytes each; then the sender's current activity, in words.
struct AnswerFrame {
  static constexpr FrameKind kKind = FrameKind::kAnswer;
  std::uint64_t seq = 0;  // of the question
  AskedState state = AskedState::kNotCalled;
  std::uint32_t numInFlight = 0;  // operations of the sender in this group
  std::uint32_t numAwaited = 0;
  std::uint32_t bulkFrames = 0;  // sent to the asking rank so far
  bool isSound(Payload payload) const;
  std::size_t awaitedBytes() const { return numAwaited * sizeof(Rank); }
};
inline constexpr std::uint32_t kMostAwaited = 16;  // ranks in one answer
// Payload: the reason why another group of the sender's process failed; empty: that group was shut down meanwhile.
struct AdviceFrame {
  static constexpr FrameKind kKind = FrameKind::kAdvice;
  bool isSound(Payload) const { return true; }
};

// ---- control lane, point to point

struct MessageTag {
  std::uint64_t message = 0;  // the sender's number of the message, counted per peer
  std::uint64_t messageBytes = 0;
  std::int32_t tag = 0;
  std::uint32_t textBytes =
      0;  // of the text at the end of the payload: the sent tensor, for Options::checkAll (0 otherwise)
};
// Payload: the message, the text.
struct EagerFrame {
  static constexpr FrameKind kKind = FrameKind::kEager;
  MessageTag about;
  bool isSound(Payload payload) const;
};
// The receiver reads the message from the sender's memory, or asks for the message where reading is impossible.
// Payload: the text.
struct OfferFrame {
  static constexpr FrameKind kKind = FrameKind::kOffer;
  MessageTag about;
  std::uint32_t reach = 0;  // Reach; kNone: the receiver must ask for the message
  std::uint32_t space = 0;
  std::uint64_t address = 0;
  bool isSound(Payload payload) const;
};
// The receiver asks for the message on the point lane.
struct GrantFrame {
  static constexpr FrameKind kKind = FrameKind::kGrant;
  std::uint64_t message = 0;
  bool isSound(Payload payload) const { return payload.empty(); }
};
// The receiver has read the message.
struct TakenFrame {
  static constexpr FrameKind kKind = FrameKind::kTaken;
  std::uint64_t message = 0;
  bool isSound(Payload payload) const { return payload.empty(); }
};

// ---- control lane, one-sided access to a part of symmetric memory: see one_sided.h

// A box of the receiver's part of a block. The payload begins with numDims extents, then as many strides in bytes, 8
// bytes each.
struct PartTag {
  std::uint64_t block = 0;   // the block's number in the group
  std::uint64_t offset = 0;  // of the first element, in bytes
  std::uint32_t elemBytes = 0;
  std::uint32_t numDims = 0;
  // Bytes of the box's elements. Returns nothing for an impossible box: too many dimensions, an element size that is no
  // power of two up to 16, a payload too short for the box, an extent below 1, a stride below 0, or an end beyond all
  // memory.
  std::optional<std::size_t> elementBytesIn(Payload payload) const;
  std::size_t boxBytes() const { return std::size_t{2} * numDims * sizeof(std::int64_t); }
};
// Payload: the box, then its elements, packed row by row.
struct PutFrame {
  static constexpr FrameKind kKind = FrameKind::kPut;
  PartTag part;
  bool isSound(Payload payload) const;
};
// Payload: the box. The answer contains the box's elements.
struct GetFrame {
  static constexpr FrameKind kKind = FrameKind::kGet;
  PartTag part;
  std::uint64_t request = 0;  // the sender's number of the request, counted per peer from 1
  bool isSound(Payload payload) const;
};
// An atomic operation on one element. The taker checks op and dtype.
struct WordFrame {
  static constexpr FrameKind kKind = FrameKind::kWord;
  std::uint64_t block = 0;
  std::uint64_t offset = 0;
  std::uint64_t operand = 0;
  std::uint64_t expected = 0;
  std::uint64_t request = 0;  // 0: no answer is wanted; an answer contains the value before the operation
  std::uint32_t op = 0;
  std::uint32_t dtype = 0;
  bool isSound(Payload payload) const { return payload.empty(); }
};
// The answer is empty, and confirms that all earlier requests are done.
struct FlushFrame {
  static constexpr FrameKind kKind = FrameKind::kFlush;
  std::uint64_t request = 0;
  bool isSound(Payload payload) const { return payload.empty() && request != 0; }
};
// Answers come in the order of the requests.
struct ReplyFrame {
  static constexpr FrameKind kKind = FrameKind::kReply;
  std::uint64_t request = 0;
  bool isSound(Payload) const { return request != 0; }
};
// The sender has no use for the receiver's part any more.
struct DropFrame {
  static constexpr FrameKind kKind = FrameKind::kDrop;
  std::uint64_t block = 0;
  bool isSound(Payload payload) const { return payload.empty(); }
};

// ---- bulk and point lane

// Bulk lane. Payload: staged bytes of the operation, in the order of the edge's boxes, cut into segments of at most
// segmentBytes. A barrier's is empty.
struct StagedFrame {
  static constexpr FrameKind kKind = FrameKind::kStaged;
  OperationTag operation;
  std::uint32_t segmentBytes = 0;
  std::uint32_t isAll = 0;  // 1: no post comes with this operation, all of the edge is staged
  bool isSound(Payload) const { return isAll <= 1; }
};
// Point lane. Payload: the next part of the message.
struct MessagePartFrame {
  static constexpr FrameKind kKind = FrameKind::kMessagePart;
  std::uint64_t message = 0;
  bool isSound(Payload payload) const { return !payload.empty(); }
};

// ---- the one writer and the one reader

template <typename F>
inline constexpr std::size_t kFieldBytes = std::is_empty_v<F> ? 0 : sizeof(F);
// Bytes of a frame before its payload.
template <typename F>
inline constexpr std::size_t kHeadBytes = sizeof(FrameStart) + kFieldBytes<F>;

// Writes all of the frame but the payload, which the caller writes behind kHeadBytes<F>. Precondition: `frame` has room
// for both.
template <typename F>
void writeFrame(std::span<std::byte> frame, const F& fields, std::size_t payloadBytes) {
  static_assert(std::is_empty_v<F> || std::has_unique_object_representations_v<F>,
                "fields leave no gaps: they go out as they lie");
  const FrameStart start{.kind = F::kKind, .payloadBytes = static_cast<std::uint32_t>(payloadBytes)};
  std::memcpy(frame.data(), &start, sizeof start);
  if constexpr (kFieldBytes<F> != 0) {
    std::memcpy(frame.data() + sizeof start, &fields, sizeof fields);
  }
}

template <typename F>
struct Received : F {
  Payload payload;  // lies in the frame
};

// Returns nothing when the frame is no sound F.
template <typename F>
std::optional<Received<F>> readFrame(std::span<const std::byte> frame) {
  std::optional<Received<F>> received;  // the one object returned, so that no caller copies it
  if (frame.size() < kHeadBytes<F>) {
    return received;
  }
  FrameStart start;
  std::memcpy(&start, frame.data(), sizeof start);
  if (start.version != kFrameVersion || start.kind != F::kKind || start.reserved != 0 ||
      start.payloadBytes != frame.size() - kHeadBytes<F>) {
    return received;
  }
  received.emplace();
  if constexpr (kFieldBytes<F> != 0) {
    std::memcpy(static_cast<F*>(&*received), frame.data() + sizeof start, sizeof(F));
  }
  received->payload = frame.subspan(kHeadBytes<F>);
  if (!received->isSound(received->payload)) {
    received.reset();
  }
  return received;
}

// The kind of the frame; nothing when the frame has no start, or another version.
std::optional<FrameKind> kindOf(std::span<const std::byte> frame);
// kInternal: names the peer, the lane, and the known properties of the frame.
Status unreadableFrame(Rank peer, Lane lane, std::span<const std::byte> frame);

// ---- payloads

// How peers may reach an input of its owner. On the wire 16 bytes, then the strides, 8 bytes each.
struct PostedSlot {
  Reach reach = Reach::kNone;
  RemoteAddress address;
  Dims byteStrides;
};
std::size_t postedSlotBytes(int numDims);
// Writes to `out` and returns the end of the written bytes.
std::byte* writePostedSlot(std::byte* out, const PostedSlot& slot);
// Takes the next slot off the payload. Returns nothing when there is no sound slot, which is possible in spite of
// PostFrame::isSound(): the frame lies in memory that the peer shares.
std::optional<PostedSlot> takePostedSlot(Payload& payload);

// The awaited ranks of an answer. Returns nothing if a rank is not below `worldSize`.
std::optional<std::vector<Rank>> awaitedIn(const Received<AnswerFrame>& answer, int worldSize);

inline std::string_view textOf(Payload payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}
inline Payload bytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace shardwire::internal
