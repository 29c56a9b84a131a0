// The stream of frames: first the exact bytes on the wire, then the errors for impossible bytes, for frames that only
// the reader can check, and for random bytes, and at last frames over a stream that is cut at random places.
#include "backend/transport/tcp/frame_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>

#include "backend/fabric/link_message.h"
#include "backend/transport/lanes.h"
#include "tests/backend/transport/tcp/tcp_pair.h"
#include "tests/support/hex.h"
#include "tests/support/random.h"

namespace shardwire::testing {
namespace {

using internal::Fd;
using internal::FrameStream;
using internal::Lane;
using internal::UnitType;

constexpr std::array<std::uint64_t, internal::kNumLanes> kCapacities = {4096, 4096, 4096};

void put(FrameStream& stream, Lane lane, std::string_view bytes) {
  const auto room = stream.writer(lane).reserve(bytes.size(), bytes.size());
  ASSERT_GE(room.size(), bytes.size());
  std::memcpy(room.data(), bytes.data(), bytes.size());
  stream.writer(lane).commit(bytes.size());
}

std::string read(const Fd& socket, std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t at = 0; at < size;) {
    EXPECT_TRUE(internal::WaitLimit(soon()).waitFor(socket, POLLIN, "reading").isOk());
    const ssize_t some = ::recv(socket.get(), bytes.data() + at, size - at, 0);
    if (some <= 0) {
      ADD_FAILURE() << "the stream ended after " << at << " bytes";
      break;
    }
    at += static_cast<std::size_t>(some);
  }
  return bytes;
}

// The stream's status after these bytes have arrived.
Status feed(std::string_view bytes) {
  auto [near, far] = makeTcpPair();
  FrameStream stream(std::move(far), kCapacities);
  EXPECT_EQ(*internal::sendSome(near, bytes), bytes.size());
  near.reset();
  bool moved = false;
  Status status;
  while (status.isOk() && !stream.isEnded()) {
    EXPECT_TRUE(internal::WaitLimit(soon()).waitFor(stream.socket(), POLLIN, "feeding").isOk());
    status = stream.receive(&moved);
  }
  return status;
}

std::string unit(UnitType type, int tag, int flags, std::uint32_t bytes, std::size_t payload = 0) {
  std::string text = {static_cast<char>(type), static_cast<char>(tag), static_cast<char>(flags), '\0'};
  for (int i = 0; i < 4; ++i) {
    text += static_cast<char>(bytes >> (8 * i));
  }
  return text + std::string(payload, 'x');
}

// Written out by hand from the table in frame_stream.h.
TEST(FrameStream, WireBytesAreThese) {
  auto [near, far] = makeTcpPair();
  FrameStream stream(std::move(near), kCapacities);
  put(stream, Lane::kPoint, "abcdefgh");
  stream.sendNote(9, "note");
  bool moved = false;
  ASSERT_TRUE(stream.flush(&moved).isOk());
  EXPECT_TRUE(moved);
  EXPECT_EQ(toHex(read(far, 36)),
            "0409000004000000"
            "6e6f7465"  // a note goes first
            "0102000010000000"
            "080000004652414d"
            "6162636465666768");  // lane 2, 16 bytes: length, "FRAM", payload
  // Two frames at once are one unit; the second's payload is padded to eight bytes.
  put(stream, Lane::kControl, "12345678");
  put(stream, Lane::kControl, "abcdefgh");
  ASSERT_TRUE(stream.flush(&moved).isOk());
  EXPECT_EQ(toHex(read(far, 40)),
            "0100000020000000"
            "080000004652414d"
            "3132333435363738"
            "080000004652414d"
            "6162636465666768");
  // The peer's frames are released by credit.
  ASSERT_EQ(*internal::sendSome(far, unit(UnitType::kFrames, 1, 0, 16) + std::string("\x08\0\0\0FRAM", 8) + "abcdefgh"),
            24U);
  ASSERT_TRUE(internal::WaitLimit(soon()).waitFor(stream.socket(), POLLIN, "receiving").isOk());
  ASSERT_TRUE(stream.receive(&moved).isOk());
  ASSERT_EQ(stream.reader(Lane::kBulk).peek().size(), 8U);
  stream.reader(Lane::kBulk).release();
  ASSERT_TRUE(stream.flush(&moved).isOk());
  EXPECT_EQ(toHex(read(far, 8)), "0301000010000000");
}

TEST(FrameStream, WhatCannotBeIsAnError) {
  const std::pair<std::string, const char*> cases[] = {
      {unit(static_cast<UnitType>(9), 0, 0, 16, 16), "a unit of unknown type"},
      {unit(UnitType::kFrames, 3, 0, 16, 16), "a unit of lane 3"},
      {unit(UnitType::kFrames, 0, 2, 16, 16), "a malformed unit header"},
      {unit(UnitType::kFrames, 0, 0, 0), "0 bytes for the control lane"},
      {unit(UnitType::kFrames, 0, 0, 12, 12), "12 bytes for the control lane"},
      {unit(UnitType::kFrames, 0, 0, 4104, 4104), "4104 bytes for the control lane"},
      {unit(UnitType::kFrames, 1, 0, 0xfffffff8), "bytes for the bulk lane"},
      {unit(UnitType::kFrames, 0, 0, 4096, 4096) + unit(UnitType::kFrames, 0, 0, 8, 8), "which has room for 0"},
      {unit(UnitType::kSkip, 0, 0, 8), "a skip in the middle of a lane"},
      {unit(UnitType::kFrames, 0, 1, 2048, 2048) + unit(UnitType::kSkip, 0, 0, 2048), "a skip in the middle of a lane"},
      {unit(UnitType::kCredit, 2, 0, 8), "never sent"},
      {unit(UnitType::kCredit, 0, 0, 0), "never sent"},
      {unit(UnitType::kNote, 1, 0, 0x7fffffff), "a note of 2147483647 bytes"}};
  for (const auto& [bytes, words] : cases) {
    const Status status = feed(bytes);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
}

TEST(FrameStream, AFrameThatIsNoneIsSeenByItsReader) {
  auto [near, far] = makeTcpPair();
  FrameStream stream(std::move(far), kCapacities);
  ASSERT_EQ(*internal::sendSome(near, unit(UnitType::kFrames, 0, 0, 16, 16)), 24U);
  ASSERT_TRUE(internal::WaitLimit(soon()).waitFor(stream.socket(), POLLIN, "feeding").isOk());
  bool moved = false;
  ASSERT_TRUE(stream.receive(&moved).isOk());
  EXPECT_TRUE(stream.reader(Lane::kControl).peek().empty());
  EXPECT_TRUE(stream.reader(Lane::kControl).isBroken());
}

TEST(FrameStream, RandomBytesNeverGetThrough) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    std::string bytes(4096, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random.bits());
    }
    bytes[0] = static_cast<char>(random.between(0, 5));  // often a valid type
    bytes[1] = static_cast<char>(random.between(0, 3));
    bytes[2] = bytes[3] = 0;
    (void)feed(bytes).isOk();  // no crash, no endless loop; most are refused
  }
}

// The peer takes bytes one at a time: every cut of the stream is met.
TEST(FrameStream, FramesSurviveAnyCutOfTheStream) {
  auto [near, middle] = makeTcpPair();
  auto [middle2, far] = makeTcpPair();
  FrameStream sender(std::move(near), kCapacities);
  FrameStream receiver(std::move(far), kCapacities);
  std::size_t sent = 0;
  std::size_t received = 0;
  const auto frame = [](std::size_t number) {
    return std::string(1 + number * 37 % 1000, static_cast<char>('a' + number % 26));
  };
  bool moved = false;
  for (const auto start = Clock::now(); received < 60 && Clock::now() - start < std::chrono::seconds(30);) {
    const std::string next = frame(sent);
    if (sent < 60 && !sender.writer(Lane::kBulk).reserve(next.size(), next.size()).empty()) {
      sender.writer(Lane::kBulk).commit(0);
      put(sender, Lane::kBulk, next);
      ++sent;
    }
    ASSERT_TRUE(sender.flush(&moved).isOk());
    char byte = 0;
    if (::recv(middle.get(), &byte, 1, MSG_DONTWAIT) == 1) {
      ASSERT_EQ(::send(middle2.get(), &byte, 1, MSG_NOSIGNAL), 1);
    }
    ASSERT_TRUE(receiver.receive(&moved).isOk());
    if (const auto got = receiver.reader(Lane::kBulk).peek(); !got.empty()) {
      ASSERT_EQ(std::string(reinterpret_cast<const char*>(got.data()), got.size()), frame(received)) << received;
      receiver.reader(Lane::kBulk).release();
      ++received;
    }
    ASSERT_TRUE(receiver.flush(&moved).isOk());
    char back[64];
    if (const ssize_t some = ::recv(middle2.get(), back, sizeof back, MSG_DONTWAIT); some > 0) {
      ASSERT_EQ(::send(middle.get(), back, static_cast<std::size_t>(some), MSG_NOSIGNAL), some);
    }
    ASSERT_TRUE(sender.receive(&moved).isOk());  // credit
  }
  EXPECT_EQ(received, 60U);
}

}  // namespace
}  // namespace shardwire::testing
