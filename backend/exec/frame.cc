// Checks of a frame's fields, done once, at the read: every length is compared with the bytes that are there, every
// enumerator with its range. Sums cannot overflow, even with the fields of a broken peer. Then the writer and the
// reader of posted slots, and the error text for unreadable frames.
#include "backend/exec/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace shardwire::internal {

namespace {

// A peer that announces a longer blob is broken: the specs of all ranks of the largest groups are far shorter.
constexpr std::uint64_t kMaxBlobBytes = std::uint64_t{1} << 36;

constexpr bool isReach(std::uint32_t reach) {
  return reach <= static_cast<std::uint32_t>(Reach::kFetch);
}

// The bytes of a PostedSlot on the wire, before the strides.
struct SlotFields {
  std::uint8_t reach = 0;
  std::uint8_t numDims = 0;
  std::uint16_t reserved = 0;
  std::uint32_t space = 0;
  std::uint64_t address = 0;
};
static_assert(sizeof(SlotFields) == 16);

}  // namespace

std::string_view frameKindName(FrameKind kind) {
  constexpr std::array<std::string_view, 22> kNames = {
      "unknown", "post",  "ack",    "blob",         "cancel", "fail",   "desync", "eager message",
      "offer",   "grant", "taken",  "staged bytes", "ask",    "answer", "advice", "message part",
      "put",     "get",   "atomic", "flush",        "reply",  "drop"};
  static_assert(kNames.size() == static_cast<std::size_t>(FrameKind::kDrop) + 1);
  const auto index = static_cast<std::size_t>(kind);
  return kNames[index < kNames.size() ? index : 0];
}

bool PostFrame::isSound(Payload payload) const {
  for (std::uint32_t i = 0; i < numSlots; ++i) {
    if (!takePostedSlot(payload).has_value()) {
      return false;
    }
  }
  return numSlots > 0 && payload.empty();
}

bool BlobFrame::isSound(Payload payload) const {
  return totalBytes <= kMaxBlobBytes && offset <= totalBytes && payload.size() <= totalBytes - offset;
}

bool FailFrame::isSound(Payload) const {
  return code > static_cast<std::uint32_t>(StatusCode::kOk) && code < kNumStatusCodes && isRevoked <= 1;
}

bool AnswerFrame::isSound(Payload payload) const {
  return state <= AskedState::kOver && numAwaited <= kMostAwaited && payload.size() >= awaitedBytes();
}

bool EagerFrame::isSound(Payload payload) const {
  return about.textBytes <= payload.size() && about.messageBytes == payload.size() - about.textBytes;
}

bool OfferFrame::isSound(Payload payload) const {
  return isReach(reach) && about.textBytes == payload.size();
}

std::optional<std::size_t> PartTag::elementBytesIn(Payload payload) const {
  // The largest possible address; the sum of two such values does not overflow.
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  if (numDims > static_cast<std::uint32_t>(kMaxDims) || !std::has_single_bit(elemBytes) || elemBytes > 16 ||
      payload.size() < boxBytes() || offset > kMost) {
    return std::nullopt;
  }
  std::uint64_t count = 1;
  std::uint64_t last = 0;  // begin of the last element, from the first
  for (std::size_t dim = 0; dim < numDims; ++dim) {
    std::int64_t extent = 0;
    std::int64_t stride = 0;
    std::memcpy(&extent, payload.data() + dim * sizeof extent, sizeof extent);
    std::memcpy(&stride, payload.data() + (numDims + dim) * sizeof stride, sizeof stride);
    if (extent < 1 || stride < 0 || static_cast<std::uint64_t>(extent) > kMost / count ||
        (extent > 1 && static_cast<std::uint64_t>(stride) > kMost / static_cast<std::uint64_t>(extent))) {
      return std::nullopt;
    }
    count *= static_cast<std::uint64_t>(extent);
    last += static_cast<std::uint64_t>(extent - 1) * static_cast<std::uint64_t>(stride);
    if (last > kMost) {
      return std::nullopt;
    }
  }
  return count > kMost / elemBytes ? std::nullopt : std::optional<std::size_t>(count * elemBytes);
}

bool PutFrame::isSound(Payload payload) const {
  const auto bytes = part.elementBytesIn(payload);
  return bytes.has_value() && payload.size() - part.boxBytes() == *bytes;
}

bool GetFrame::isSound(Payload payload) const {
  return request != 0 && part.elementBytesIn(payload).has_value() && payload.size() == part.boxBytes();
}

std::optional<FrameKind> kindOf(std::span<const std::byte> frame) {
  FrameStart start;
  if (frame.size() < sizeof start) {
    return std::nullopt;
  }
  std::memcpy(&start, frame.data(), sizeof start);
  return start.version == kFrameVersion ? std::optional(start.kind) : std::nullopt;
}

Status unreadableFrame(Rank peer, Lane lane, std::span<const std::byte> frame) {
  const char* const lanes[] = {"control", "bulk", "point"};
  std::string what;
  if (frame.size() >= sizeof(FrameStart)) {
    FrameStart start;
    std::memcpy(&start, frame.data(), sizeof start);
    what = start.version == kFrameVersion
               ? fmt::format(" (kind {}: {})", static_cast<int>(start.kind), frameKindName(start.kind))
               : fmt::format(" (version {}, here {})", start.version, kFrameVersion);
  }
  return {StatusCode::kInternal,
          fmt::format("rank {} sent a frame of {} bytes on the {} lane that cannot be read{}: a bug, or a stray write",
                      peer, frame.size(), lanes[static_cast<int>(lane)], what)};
}

std::optional<std::vector<Rank>> awaitedIn(const Received<AnswerFrame>& answer, int worldSize) {
  std::vector<Rank> ranks(answer.numAwaited);
  std::copy_n(answer.payload.begin(), answer.awaitedBytes(), std::as_writable_bytes(std::span(ranks)).begin());
  const bool areRanks = std::ranges::all_of(ranks, [&](Rank rank) { return rank >= 0 && rank < worldSize; });
  return areRanks ? std::optional(std::move(ranks)) : std::nullopt;
}

std::size_t postedSlotBytes(int numDims) {
  return sizeof(SlotFields) + static_cast<std::size_t>(numDims) * sizeof(std::int64_t);
}

std::byte* writePostedSlot(std::byte* out, const PostedSlot& slot) {
  const SlotFields fields{.reach = static_cast<std::uint8_t>(slot.reach),
                          .numDims = static_cast<std::uint8_t>(slot.byteStrides.size()),
                          .space = slot.address.space,
                          .address = slot.address.value};
  std::memcpy(out, &fields, sizeof fields);
  const std::span<const std::int64_t> strides = slot.byteStrides.span();
  std::memcpy(out + sizeof fields, strides.data(), strides.size_bytes());
  return out + sizeof fields + strides.size_bytes();
}

std::optional<PostedSlot> takePostedSlot(Payload& payload) {
  SlotFields fields;
  if (payload.size() < sizeof fields) {
    return std::nullopt;
  }
  std::memcpy(&fields, payload.data(), sizeof fields);
  if (!isReach(fields.reach) || fields.numDims > kMaxDims || payload.size() < postedSlotBytes(fields.numDims)) {
    return std::nullopt;
  }
  PostedSlot slot{static_cast<Reach>(fields.reach), {fields.space, fields.address}, Dims::filled(fields.numDims, 0)};
  std::memcpy(slot.byteStrides.begin(), payload.data() + sizeof fields, fields.numDims * sizeof(std::int64_t));
  payload = payload.subspan(postedSlotBytes(fields.numDims));
  return slot;
}

}  // namespace shardwire::internal
