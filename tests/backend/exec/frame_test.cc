// The frames of engines. First the exact bytes of each kind, then the round trip of every kind, then the refusal of
// frames with impossible fields and of frames with random damage (never read past the end), and at last the error text
// for an unreadable frame: peer, lane and kind.
#include "backend/exec/frame.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/backend/exec/fake_group.h"
#include "tests/support/random.h"

namespace shardwire::internal {
namespace {

std::string hex(const Bytes& bytes) {
  const char* const digits = "0123456789abcdef";
  std::string text;
  for (const std::byte each : bytes) {
    text += digits[std::to_integer<int>(each) >> 4];
    text += digits[std::to_integer<int>(each) & 15];
  }
  return text;
}

Bytes slotBytes(const PostedSlot& slot) {
  Bytes bytes(postedSlotBytes(slot.byteStrides.size()));
  EXPECT_EQ(writePostedSlot(bytes.data(), slot), bytes.data() + bytes.size());
  return bytes;
}

const OperationTag kTag{.seq = 0x0102, .fingerprint = 0x0304};
const MessageTag kAbout{.message = 5, .messageBytes = 3, .tag = -2, .textBytes = 1};

// version, kind, 0, payload bytes | fields | payload
TEST(Frame, HasGoldenBytes) {
  const Bytes slot = slotBytes({Reach::kCopy, {1, 0x99}, {8}});
  EXPECT_EQ(hex(frameOf(PostFrame{kTag, 7, 2, 1}, slot)),
            "05010000"
            "18000000"
            "0201000000000000"
            "0403000000000000"
            "0700000000000000"
            "0200000001000000"
            "0201000001000000"
            "9900000000000000"
            "0800000000000000");
  EXPECT_EQ(hex(frameOf(AckFrame{kTag})), "050200000000000002010000000000000403000000000000");
  EXPECT_EQ(hex(frameOf(BlobFrame{kTag, 1, 3}, bytesOf("bc"))),
            "0503000002000000020100000000000004030000000000000100000000000000"
            "03000000000000006263");
  EXPECT_EQ(hex(frameOf(CancelFrame{kTag}, bytesOf("x"))),
            "0504000001000000020100000000000004030000000000"
            "00ffffffff0000000078");
  EXPECT_EQ(hex(frameOf(CancelFrame{kTag, 7}, bytesOf("x"))),
            "0504000001000000020100000000000004030000000000000700000000000000"
            "78");
  EXPECT_EQ(hex(frameOf(FailFrame{.code = 4}, bytesOf("x"))), "0505000001000000040000000000000078");
  EXPECT_EQ(hex(frameOf(DesyncFrame{.seq = 9, .wantsAnswer = 1}, bytesOf("x"))),
            "050600000100000009000000000000000100000000000000"
            "78");
  EXPECT_EQ(hex(frameOf(EagerFrame{kAbout}, bytesOf("abct"))),
            "05070000040000000500000000000000"
            "0300000000000000feffffff01000000"
            "61626374");
  EXPECT_EQ(hex(frameOf(OfferFrame{kAbout, 3, 2, 0x77}, bytesOf("t"))),
            "05080000010000000500000000000000"
            "0300000000000000feffffff01000000"
            "0300000002000000770000000000000074");
  EXPECT_EQ(hex(frameOf(GrantFrame{6})), "05090000000000000600000000000000");
  EXPECT_EQ(hex(frameOf(TakenFrame{6})), "050a0000000000000600000000000000");
  EXPECT_EQ(hex(frameOf(StagedFrame{kTag, 4096, 1}, bytesOf("ab"))),
            "050b000002000000"
            "0201000000000000"
            "0403000000000000"
            "0010000001000000"
            "6162");
  EXPECT_EQ(hex(frameOf(AskFrame{.operation = kTag, .sends = 1, .receives = 2, .wantsAnswer = 1})),
            "050c000000000000"
            "0201000000000000"
            "0403000000000000"
            "0100000000000000"
            "0200000000000000"
            "0100000000000000");
  EXPECT_EQ(hex(frameOf(AnswerFrame{.seq = 9, .state = AskedState::kOver, .numInFlight = 3, .numAwaited = 1},
                        bytesOf(std::string_view("\2\0\0\0x", 5)))),
            "050d000005000000"
            "0900000000000000"
            "0200000003000000"
            "0100000000000000"
            "0200000078");
  EXPECT_EQ(hex(frameOf(AdviceFrame{}, bytesOf("x"))), "050e00000100000078");
  EXPECT_EQ(hex(frameOf(MessagePartFrame{6}, bytesOf("x"))), "050f000001000000060000000000000078");
}

// A box of two elements, 4 bytes apart.
Bytes boxBytesOf(std::initializer_list<std::int64_t> dims, std::string_view elements) {
  Bytes bytes(dims.size() * sizeof(std::int64_t));
  std::memcpy(bytes.data(), dims.begin(), bytes.size());
  const Payload tail = bytesOf(elements);
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return bytes;
}

TEST(Frame, OfOneSidedAccessHasGoldenBytes) {
  const PartTag part{.block = 3, .offset = 8, .elemBytes = 2, .numDims = 1};
  EXPECT_EQ(hex(frameOf(PutFrame{part}, boxBytesOf({2, 4}, "abcd"))),
            "0510000014000000"
            "0300000000000000"
            "0800000000000000"
            "0200000001000000"
            "0200000000000000"
            "0400000000000000"
            "61626364");
  EXPECT_EQ(hex(frameOf(GetFrame{part, 9}, boxBytesOf({2, 4}, ""))),
            "0511000010000000"
            "0300000000000000"
            "0800000000000000"
            "0200000001000000"
            "0900000000000000"
            "0200000000000000"
            "0400000000000000");
  EXPECT_EQ(hex(frameOf(WordFrame{3, 8, 1, 2, 9, 4, 5})),
            "0512000000000000"
            "0300000000000000"
            "0800000000000000"
            "0100000000000000"
            "0200000000000000"
            "0900000000000000"
            "0400000005000000");
  EXPECT_EQ(hex(frameOf(FlushFrame{9})), "05130000000000000900000000000000");
  EXPECT_EQ(hex(frameOf(ReplyFrame{9}, bytesOf("ab"))), "051400000200000009000000000000006162");
  EXPECT_EQ(hex(frameOf(DropFrame{3})), "05150000000000000300000000000000");
}

TEST(Frame, IsReadAsItWasWritten) {
  Bytes slots = slotBytes({Reach::kFetch, {7, 8}, {}});
  const Bytes second = slotBytes({Reach::kNone, {}, {16, 4}});
  slots.insert(slots.end(), second.begin(), second.end());
  const Bytes bytes = frameOf(PostFrame{kTag, 7, 2, 2}, slots);
  const auto post = readFrame<PostFrame>(bytes);
  ASSERT_TRUE(post.has_value());
  EXPECT_EQ(post->operation.seq, kTag.seq);
  EXPECT_EQ(post->operation.fingerprint, kTag.fingerprint);
  EXPECT_EQ(post->edgeBytes, 7U);
  EXPECT_EQ(post->firstSlot, 2U);
  Payload rest = post->payload;
  const PostedSlot first = takePostedSlot(rest).value();
  EXPECT_EQ(first.reach, Reach::kFetch);
  EXPECT_EQ(first.address.space, 7U);
  EXPECT_EQ(first.address.value, 8U);
  EXPECT_TRUE(first.byteStrides.empty());
  EXPECT_EQ(takePostedSlot(rest).value().byteStrides, (Dims{16, 4}));
  EXPECT_TRUE(rest.empty());
  EXPECT_FALSE(takePostedSlot(rest).has_value());
  Bytes changed = second;
  changed[1] = std::byte{200};  // dimensions, by a peer that shares the frame's memory
  rest = changed;
  EXPECT_FALSE(takePostedSlot(rest).has_value());

  const Bytes eager = frameOf(EagerFrame{kAbout}, bytesOf("abct"));
  ASSERT_TRUE(readFrame<EagerFrame>(eager).has_value());
  EXPECT_EQ(textOf(readFrame<EagerFrame>(eager)->payload), "abct");
}

template <typename F>
void expectRefused(const F& fields, Payload payload, const char* why) {
  EXPECT_FALSE(readFrame<F>(frameOf(fields, payload)).has_value()) << why;
}

TEST(Frame, IsRefusedWhenItsFieldsCannotBe) {
  const Bytes slot = slotBytes({Reach::kCopy, {1, 0x99}, {8, 8}});
  expectRefused(PostFrame{kTag, 7, 0, 0}, {}, "no slot");
  expectRefused(PostFrame{kTag, 7, 0, 2}, slot, "a slot too few");
  expectRefused(PostFrame{kTag, 7, 0, 0xffffffff}, slot, "slots without end");
  expectRefused(PostFrame{kTag, 7, 0, 1}, Payload(slot).first(slot.size() - 1), "a stride cut off");
  Bytes other = slot;
  other[0] = std::byte{4};
  expectRefused(PostFrame{kTag, 7, 0, 1}, other, "an unknown reach");
  other = slot;
  other[1] = std::byte{kMaxDims + 1};
  other.resize(postedSlotBytes(kMaxDims + 1));
  expectRefused(PostFrame{kTag, 7, 0, 1}, other, "too many dimensions");
  expectRefused(AckFrame{kTag}, bytesOf("x"), "a payload");
  expectRefused(BlobFrame{kTag, 2, 3}, bytesOf("bc"), "a part past the end");
  expectRefused(BlobFrame{kTag, ~std::uint64_t{0}, 3}, bytesOf("bc"), "an offset that overflows");
  expectRefused(BlobFrame{kTag, 0, std::uint64_t{1} << 40}, bytesOf("bc"), "a blob without end");
  expectRefused(FailFrame{.code = 0}, {}, "no failure");
  expectRefused(FailFrame{.code = kNumStatusCodes}, {}, "an unknown code");
  expectRefused(FailFrame{.code = 4, .isRevoked = 2}, {}, "neither revoked nor not");
  expectRefused(DesyncFrame{.seq = 1, .wantsAnswer = 2}, {}, "a flag");
  expectRefused(EagerFrame{{.message = 1, .messageBytes = 4, .textBytes = 1}}, bytesOf("abc"),
                "bytes that are not there");
  expectRefused(EagerFrame{{.message = 1, .messageBytes = ~std::uint64_t{0}, .textBytes = 4}}, bytesOf("abc"),
                "a sum that overflows");
  expectRefused(OfferFrame{kAbout, 4, 0, 0}, bytesOf("t"), "an unknown reach");
  expectRefused(OfferFrame{kAbout, 0, 0, 0}, bytesOf("tt"), "text that is not announced");
  expectRefused(StagedFrame{kTag, 4096, 2}, bytesOf("x"), "a flag");
  expectRefused(AskFrame{.wantsAnswer = 2}, {}, "a flag");
  expectRefused(AnswerFrame{.state = static_cast<AskedState>(3)}, {}, "an unknown state");
  expectRefused(AnswerFrame{.numAwaited = 2}, bytesOf("1234567"), "a rank cut off");
  expectRefused(AnswerFrame{.numAwaited = kMostAwaited + 1}, bytesOf(std::string(4 * kMostAwaited + 4, '\0')),
                "too many ranks");
  expectRefused(AnswerFrame{.numAwaited = ~std::uint32_t{0} / 4 + 1}, {}, "a sum that overflows");
  expectRefused(MessagePartFrame{6}, {}, "no bytes");
  const PartTag part{.block = 3, .offset = 8, .elemBytes = 2, .numDims = 1};
  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  expectRefused(PutFrame{part}, boxBytesOf({2, 4}, "abc"), "an element cut off");
  expectRefused(PutFrame{part}, boxBytesOf({2}, ""), "a box cut off");
  expectRefused(PutFrame{part}, boxBytesOf({0, 4}, ""), "no element");
  expectRefused(PutFrame{part}, boxBytesOf({-2, 4}, "abcd"), "an extent below 0");
  expectRefused(GetFrame{part, 9}, boxBytesOf({2, -4}, ""), "a stride below 0");
  expectRefused(GetFrame{part, 9}, boxBytesOf({kHuge, 1}, ""), "an extent without end");
  expectRefused(GetFrame{part, 9}, boxBytesOf({kHuge / 4, 8}, ""), "a box without end");
  expectRefused(GetFrame{part, 9}, boxBytesOf({2, kHuge}, ""), "a stride without end");
  expectRefused(GetFrame{part, 0}, boxBytesOf({2, 4}, ""), "no number");
  expectRefused(GetFrame{part, 9}, boxBytesOf({2, 4}, "ab"), "elements");
  expectRefused(GetFrame{{.block = 3, .elemBytes = 3, .numDims = 1}, 9}, boxBytesOf({2, 4}, ""), "elements of 3 bytes");
  expectRefused(GetFrame{{.block = 3, .elemBytes = 32, .numDims = 1}, 9}, boxBytesOf({2, 32}, ""),
                "elements of 32 bytes");
  expectRefused(GetFrame{part, 9}, boxBytesOf({kHuge / 2, 0}, ""), "more bytes than addresses");
  const PartTag cube{.block = 3, .elemBytes = 2, .numDims = 3};
  expectRefused(GetFrame{cube, 9}, boxBytesOf({kHuge / 2, kHuge / 2, 16, 0, 0, 0}, ""), "a product without end");
  expectRefused(GetFrame{cube, 9}, boxBytesOf({2, 2, 2, kHuge / 4, kHuge / 4, kHuge / 4}, ""), "a sum without end");
  expectRefused(GetFrame{{.block = 3, .elemBytes = 2, .numDims = 0xffffffff}, 9}, boxBytesOf({2, 4}, ""),
                "dimensions without end");
  expectRefused(GetFrame{{.block = 3, .offset = ~std::uint64_t{0}, .elemBytes = 2}, 9}, {}, "an offset without end");
  expectRefused(FlushFrame{0}, {}, "no number");
  expectRefused(ReplyFrame{0}, {}, "no number");
}

// As a tensor may have: no step of the dimension is taken.
TEST(Frame, MayHaveAnyStrideInADimensionOfOneElement) {
  const PartTag part{.block = 3, .offset = 8, .elemBytes = 2, .numDims = 2};
  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  EXPECT_TRUE(readFrame<GetFrame>(frameOf(GetFrame{part, 9}, boxBytesOf({1, 2, kHuge, 4}, ""))).has_value());
  EXPECT_TRUE(readFrame<PutFrame>(frameOf(PutFrame{part}, boxBytesOf({1, 2, kHuge, 4}, "abcd"))).has_value());
}

// Cut at any byte, with a byte too many, and with any bit flipped: the frame is either refused or sound by its own
// rules, and never read past the end (each frame is a separate heap block, which ASan watches).
template <typename F>
void tryDamage(const F& fields, Payload payload, testing::Random& random) {
  const Bytes sound = frameOf(fields, payload);
  ASSERT_TRUE(readFrame<F>(sound).has_value());
  for (std::size_t size = 0; size < sound.size(); ++size) {
    EXPECT_FALSE(readFrame<F>(Bytes(sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(size))).has_value())
        << size;
  }
  Bytes longer = sound;
  longer.push_back({});
  EXPECT_FALSE(readFrame<F>(longer).has_value());
  for (int i = 0; i < 2000; ++i) {
    Bytes damaged = sound;
    for (int changes = 0; changes < 1 + i % 3; ++changes) {
      damaged[random.bits() % damaged.size()] ^= std::byte{1} << random.bits() % 8;
    }
    const auto read = readFrame<F>(damaged);
    if (read.has_value()) {
      EXPECT_EQ(read->payload.size(), payload.size());
      EXPECT_TRUE(read->isSound(read->payload));
    }
    EXPECT_NE(unreadableFrame(3, Lane::kControl, damaged).message().find("rank 3"), std::string::npos);
  }
}

TEST(Frame, WithDamageIsNeverReadPastItsEnd) {
  testing::Random random(7);
  Bytes slots = slotBytes({Reach::kCopy, {1, 0x99}, {8, 8}});
  const Bytes second = slotBytes({Reach::kNone, {}, {16}});
  slots.insert(slots.end(), second.begin(), second.end());
  tryDamage(PostFrame{kTag, 7, 2, 2}, slots, random);
  tryDamage(AckFrame{kTag}, {}, random);
  tryDamage(BlobFrame{kTag, 1, 3}, bytesOf("bc"), random);
  tryDamage(CancelFrame{kTag}, bytesOf("why"), random);
  tryDamage(FailFrame{.code = 4}, bytesOf("why"), random);
  tryDamage(DesyncFrame{.seq = 9}, bytesOf("all_reduce"), random);
  tryDamage(EagerFrame{kAbout}, bytesOf("abct"), random);
  tryDamage(OfferFrame{kAbout, 3, 2, 0x77}, bytesOf("t"), random);
  tryDamage(GrantFrame{6}, {}, random);
  tryDamage(TakenFrame{6}, {}, random);
  tryDamage(StagedFrame{kTag, 4096, 1}, bytesOf("ab"), random);
  tryDamage(AskFrame{.operation = kTag}, {}, random);
  tryDamage(AnswerFrame{.seq = 9, .numAwaited = 1}, bytesOf("1234idle"), random);
  tryDamage(AdviceFrame{}, bytesOf("x"), random);
  tryDamage(MessagePartFrame{6}, bytesOf("x"), random);
  const PartTag part{.block = 3, .offset = 8, .elemBytes = 2, .numDims = 1};
  tryDamage(PutFrame{part}, boxBytesOf({2, 4}, "abcd"), random);
  tryDamage(GetFrame{part, 9}, boxBytesOf({2, 4}, ""), random);
  tryDamage(WordFrame{3, 8, 1, 2, 9, 4, 5}, {}, random);
  tryDamage(FlushFrame{9}, {}, random);
  tryDamage(ReplyFrame{9}, bytesOf("x"), random);
  tryDamage(DropFrame{3}, {}, random);
}

TEST(Frame, ThatCannotBeReadIsNamedByPeerLaneAndKind) {
  Bytes frame = frameOf(StagedFrame{kTag, 4096, 1}, bytesOf("ab"));
  EXPECT_EQ(unreadableFrame(2, Lane::kBulk, frame).message(),
            "rank 2 sent a frame of 34 bytes on the bulk lane that cannot be read (kind 11: staged bytes): a bug, or a "
            "stray write");
  frame[0] = std::byte{9};
  EXPECT_EQ(unreadableFrame(2, Lane::kPoint, frame).message(),
            "rank 2 sent a frame of 34 bytes on the point lane that cannot be read (version 9, here 5): a bug, or a "
            "stray write");
  EXPECT_EQ(kindOf(frame), std::nullopt);
  EXPECT_EQ(kindOf(Bytes(7)), std::nullopt);
}

}  // namespace
}  // namespace shardwire::internal
