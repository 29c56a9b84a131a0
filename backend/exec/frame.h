// The frames that engines of two ranks exchange: for each kind one struct of its fields, written by writeFrame and read by readFrame, and
// by nothing else. Plain values, little-endian, fixed width; golden bytes in tests/backend/exec/frame_test.cc.
//
//   on the wire: FrameStart (8 bytes) | the fields of the kind | payload
//
// readFrame gives nothing for a frame that is too short, of another kind or version, not as long as it says, or whose fields cannot be:
// who reads one need not look at lengths and ranges again. What fits no frame is told by unreadableFrame().
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "backend/transport/transport.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

static_assert(std::endian::native == std::endian::little, "frames are little-endian; add byte swaps before porting");

inline constexpr std::uint8_t kFrameVersion = 4;

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
// "post"; "unknown" for what is none of the above.
std::string_view frameKindName(FrameKind kind);

// What every frame begins with.
struct FrameStart {
  std::uint8_t version = kFrameVersion;
  FrameKind kind = FrameKind::kPost;
  std::uint16_t reserved = 0;
  std::uint32_t payloadBytes = 0;  // behind the fields
};
static_assert(sizeof(FrameStart) == 8);

using Payload = std::span<const std::byte>;

// Which operation of the group: its number in the group's order, and a hash of what it is, so that another one under this number is
// noticed.
struct OperationTag {
  std::uint64_t seq = 0;
  std::uint64_t fingerprint = 0;
};

// ---- control lane, about one operation

// How the sender's inputs are reached, for some of the edge's slots in their order. Payload: numSlots times a slot (PostedSlot).
struct PostFrame {
  static constexpr FrameKind kKind = FrameKind::kPost;
  OperationTag operation;
  std::uint64_t edgeBytes = 0;  // that the edge moves in all
  std::uint32_t firstSlot = 0;
  std::uint32_t numSlots = 0;
  bool isSound(Payload payload) const;
};
// The sender of this frame has read everything of the receiver's that it wanted.
struct AckFrame {
  static constexpr FrameKind kKind = FrameKind::kAck;
  OperationTag operation;
  bool isSound(Payload payload) const { return payload.empty(); }
};
// Payload: the part of a blob from `offset` on; what a blob is, the operation knows.
struct BlobFrame {
  static constexpr FrameKind kKind = FrameKind::kBlob;
  OperationTag operation;
  std::uint64_t offset = 0;
  std::uint64_t totalBytes = 0;
  bool isSound(Payload payload) const;
};
// A rank gave the operation up. Payload: why.
struct CancelFrame {
  static constexpr FrameKind kKind = FrameKind::kCancel;
  static constexpr std::uint32_t kSender = ~std::uint32_t{0};
  OperationTag operation;
  std::uint32_t origin = kSender;  // which rank, where the sender passes on what it heard; who takes the frame knows which ranks there are
  std::uint32_t reserved = 0;
  bool isSound(Payload) const { return true; }
};

// ---- control lane, about the group

// The sender poisoned the group. Payload: why.
struct FailFrame {
  static constexpr FrameKind kKind = FrameKind::kFail;
  std::uint32_t code = 0;  // StatusCode, not kOk
  std::uint32_t reserved = 0;
  bool isSound(Payload) const;
};
// The ranks disagree about operation `seq`, which is of the sender's call `call` (its low 32 bits; 0: too long ago, or not called).
// Payload: what the sender called as that operation.
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
// Where the rank that was asked stands with the operation.
enum class AskedState : std::uint32_t { kNotCalled = 0, kInFlight = 1, kOver = 2 };
// Payload: what the sender does, in words.
struct AnswerFrame {
  static constexpr FrameKind kKind = FrameKind::kAnswer;
  std::uint64_t seq = 0;  // of the question
  AskedState state = AskedState::kNotCalled;
  std::uint32_t numInFlight = 0;  // operations of the sender in this group
  bool isSound(Payload) const { return state <= AskedState::kOver; }
};
// Payload: why another group of the sender's process failed; empty: it is shut down meanwhile.
struct AdviceFrame {
  static constexpr FrameKind kKind = FrameKind::kAdvice;
  bool isSound(Payload) const { return true; }
};

// ---- control lane, point to point

struct MessageTag {
  std::uint64_t message = 0;  // the sender's number for it, counted per peer
  std::uint64_t messageBytes = 0;
  std::int32_t tag = 0;
  std::uint32_t textBytes = 0;  // of the text that ends the payload: what is sent, for Options::checkAll (0 otherwise)
};
// Payload: the message, the text.
struct EagerFrame {
  static constexpr FrameKind kKind = FrameKind::kEager;
  MessageTag about;
  bool isSound(Payload payload) const;
};
// The receiver reads the message from the sender's memory, or asks for it where it cannot. Payload: the text.
struct OfferFrame {
  static constexpr FrameKind kKind = FrameKind::kOffer;
  MessageTag about;
  std::uint32_t reach = 0;  // Reach; kNone: to be asked for
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

// A box of the receiver's part of a block. What its payload begins with: numDims extents, then as many strides in bytes, 8 bytes each.
struct PartTag {
  std::uint64_t block = 0;   // its number in the group
  std::uint64_t offset = 0;  // of the first element, in bytes
  std::uint32_t elemBytes = 0;
  std::uint32_t numDims = 0;
  // How long the payload's beginning is, and the elements' bytes; nothing when they cannot be: no number, an extent below 1, a stride below
  // 0, or a box that ends where no memory does.
  std::optional<std::size_t> elementBytesIn(Payload payload) const;
  std::size_t boxBytes() const { return std::size_t{2} * numDims * sizeof(std::int64_t); }
};
// Payload: the box, then its elements, packed row by row.
struct PutFrame {
  static constexpr FrameKind kKind = FrameKind::kPut;
  PartTag part;
  bool isSound(Payload payload) const;
};
// Payload: the box. The answer is its elements.
struct GetFrame {
  static constexpr FrameKind kKind = FrameKind::kGet;
  PartTag part;
  std::uint64_t request = 0;  // the sender's number for it, counted per peer from 1
  bool isSound(Payload payload) const;
};
// An atomic operation on one element. What op and dtype may be, its taker knows.
struct WordFrame {
  static constexpr FrameKind kKind = FrameKind::kWord;
  std::uint64_t block = 0;
  std::uint64_t offset = 0;
  std::uint64_t operand = 0;
  std::uint64_t expected = 0;
  std::uint64_t request = 0;  // 0: nobody waits for an answer, which is what was there before
  std::uint32_t op = 0;
  std::uint32_t dtype = 0;
  bool isSound(Payload payload) const { return payload.empty(); }
};
// The answer is empty, and says that all that came before this is done.
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

// Bulk lane. Payload: staged bytes of the operation, in the order of the edge's boxes, cut into segments of at most segmentBytes. A
// barrier's is empty.
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
// Of a frame before its payload.
template <typename F>
inline constexpr std::size_t kHeadBytes = sizeof(FrameStart) + kFieldBytes<F>;

// Writes all of the frame but its payload, which the caller writes behind kHeadBytes<F>. Precondition: `frame` has room for both.
template <typename F>
void writeFrame(std::span<std::byte> frame, const F& fields, std::size_t payloadBytes) {
  static_assert(std::is_empty_v<F> || std::has_unique_object_representations_v<F>, "fields leave no gaps: they go out as they lie");
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

// Nothing when the frame is no sound F.
template <typename F>
std::optional<Received<F>> readFrame(std::span<const std::byte> frame) {
  if (frame.size() < kHeadBytes<F>) {
    return std::nullopt;
  }
  FrameStart start;
  std::memcpy(&start, frame.data(), sizeof start);
  if (start.version != kFrameVersion || start.kind != F::kKind || start.reserved != 0 ||
      start.payloadBytes != frame.size() - kHeadBytes<F>) {
    return std::nullopt;
  }
  std::optional<Received<F>> received(std::in_place);
  if constexpr (kFieldBytes<F> != 0) {
    std::memcpy(static_cast<F*>(&*received), frame.data() + sizeof start, sizeof(F));
  }
  received->payload = frame.subspan(kHeadBytes<F>);
  if (!received->isSound(received->payload)) {
    received.reset();
  }
  return received;
}

// What to read it as; nothing when it has no start, or is of another version.
std::optional<FrameKind> kindOf(std::span<const std::byte> frame);
// kInternal: names the peer, the lane, and what can be said of the frame.
Status unreadableFrame(Rank peer, Lane lane, std::span<const std::byte> frame);

// ---- payloads

// How the owner of an input lets a peer at it. On the wire 16 bytes, then the strides, 8 bytes each.
struct PostedSlot {
  Reach reach = Reach::kNone;
  RemoteAddress address;
  Dims byteStrides;
};
std::size_t postedSlotBytes(int numDims);
// Writes to `out` and returns where it ended.
std::byte* writePostedSlot(std::byte* out, const PostedSlot& slot);
// Takes the next slot off the payload. Nothing when there is no sound one, which a PostFrame's isSound() does not rule out for good: the
// frame lies in memory that the peer shares.
std::optional<PostedSlot> takePostedSlot(Payload& payload);

inline std::string_view textOf(Payload payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}
inline Payload bytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace shardwire::internal
