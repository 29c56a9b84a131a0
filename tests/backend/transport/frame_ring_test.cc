// One ring of frames, by a writer and a reader in one thread. First right use: the largest frame at every place, random
// frames against a queue, and the room on offer. Then misuse, impossible words and headers, and at last random
// corruption of the memory.
#include "backend/transport/frame_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace shardwire::internal {
namespace {

class Ring {
 public:
  explicit Ring(std::size_t capacity, Publish by, std::size_t rewindFrom = 0)
      : data_(capacity / sizeof(Line)),
        writer(&words, bytes(), capacity, by, rewindFrom),
        reader(&words, bytes(), capacity, by),
        capacity_(capacity) {}

  std::byte* bytes() { return data_.data()->data(); }
  bool send(std::size_t size, unsigned char mark) {
    const auto room = writer.reserve(size, size);
    if (room.empty()) {
      return false;
    }
    EXPECT_EQ(room.size(), size);
    EXPECT_GE(room.data(), bytes());
    EXPECT_LE(room.data() + room.size(), bytes() + capacity_);
    std::memset(room.data(), mark, size);
    writer.commit(size);
    return true;
  }

 private:
  struct alignas(64) Line : std::array<std::byte, 64> {};
  std::vector<Line> data_;

 public:
  RingWords words{};
  RingWriter writer;
  RingReader reader;

 private:
  std::size_t capacity_;
};

class FrameRing : public ::testing::TestWithParam<Publish> {};

TEST_P(FrameRing, TakesTheLargestFrameWhereverItStarts) {
  for (std::size_t start = 1; start < 300; start += 8) {
    Ring ring(1024, GetParam());
    ASSERT_TRUE(ring.send(std::min<std::size_t>(start, maxLaneFrameBytes(1024)), 1));
    ring.reader.peek();
    ring.reader.release();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(ring.send(maxLaneFrameBytes(1024), static_cast<unsigned char>(i))) << start;
      const auto frame = ring.reader.peek();
      ASSERT_EQ(frame.size(), maxLaneFrameBytes(1024));
      ASSERT_EQ(frame.back(), static_cast<std::byte>(i));
      ring.reader.release();
    }
  }
}

TEST_P(FrameRing, RandomFramesAgainstAQueue) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::size_t rewindFrom = seed % 2 == 0 ? 4096 : 0;
    Ring ring(std::size_t{512} << (rewindFrom == 0 ? random() % 4 : 6), GetParam(), rewindFrom);
    const std::size_t largest = maxLaneFrameBytes(std::size_t{512});
    std::deque<std::pair<std::size_t, unsigned char>> queue;
    int numFull = 0;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 2 == 0) {
        const std::size_t size = 1 + random() % largest;
        const auto mark = static_cast<unsigned char>(random());
        if (ring.send(size, mark)) {
          queue.emplace_back(size, mark);
        } else {
          ++numFull;
          ASSERT_FALSE(queue.empty()) << "an empty ring takes every legal frame";
        }
      } else {
        const auto frame = ring.reader.peek();
        ASSERT_EQ(frame.empty(), queue.empty());
        if (!frame.empty()) {
          ASSERT_EQ(frame.size(), queue.front().first);
          for (const std::byte byte : frame) {
            ASSERT_EQ(byte, static_cast<std::byte>(queue.front().second));
          }
          ring.reader.release();
          queue.pop_front();
        }
      }
    }
    EXPECT_TRUE(numFull > 0 || rewindFrom > 0);
    EXPECT_FALSE(ring.writer.isBroken() || ring.reader.isBroken());
  }
}

// A writer whose reader keeps up uses the beginning of the ring only; one frame that is not released yet, and the
// writer goes on through the ring.
TEST_P(FrameRing, RewindsWhenEverythingIsReleased) {
  constexpr std::size_t kCapacity = 64 << 10, kFrom = 8192;
  Ring ring(kCapacity, GetParam(), kFrom);
  std::size_t furthest = 0;
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(ring.send(1 + static_cast<std::size_t>(i) % 600, static_cast<unsigned char>(i)));
    const auto frame = ring.reader.peek();
    ASSERT_EQ(frame.size(), 1 + static_cast<std::size_t>(i) % 600);
    ASSERT_EQ(frame.back(), static_cast<std::byte>(i));
    furthest = std::max(furthest, static_cast<std::size_t>(frame.data() + frame.size() - ring.bytes()));
    ring.reader.release();
  }
  EXPECT_LE(furthest, kFrom + 4096);
  ASSERT_TRUE(ring.send(600, 1));
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(ring.send(600, 2));
    const auto frame = ring.reader.peek();
    furthest = std::max(furthest, static_cast<std::size_t>(frame.data() + frame.size() - ring.bytes()));
    ring.reader.release();
  }
  EXPECT_GT(furthest, kCapacity - 4096);
}

// Frames of several KiB begin anew early where the two ranks exchange frames, and later where the frames flow one way.
TEST_P(FrameRing, LongerFramesRewindEarlierInAnExchange) {
  for (const bool isExchange : {true, false}) {
    constexpr std::size_t kCapacity = 256 << 10, kFrom = 16384, kFrame = 8000;
    Ring ring(kCapacity, GetParam(), kFrom);
    std::size_t furthest = 0;
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(ring.send(kFrame, static_cast<unsigned char>(i)));
      const auto frame = ring.reader.peek();
      ASSERT_EQ(frame.size(), kFrame);
      ASSERT_EQ(frame.back(), static_cast<std::byte>(i));
      furthest = std::max(furthest, static_cast<std::size_t>(frame.data() + frame.size() - ring.bytes()));
      ring.reader.release();
      if (isExchange) {
        ring.writer.noteAnswer();
      }
    }
    EXPECT_EQ(furthest <= kFrom + 2 * kFrame, isExchange);
    EXPECT_LE(furthest, 4 * kFrom + 2 * kFrame);
  }
}

// A frame that is longer than the part of the ring in front of it has no room at the beginning.
TEST_P(FrameRing, FramesOfAnyLengthGoOnWhenTheReaderKeepsUp) {
  constexpr std::size_t kCapacity = 256 << 10;
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    Ring ring(kCapacity, GetParam(), 4096);
    for (int i = 0; i < 100; ++i) {
      const std::size_t size = 1 + random() % maxLaneFrameBytes(kCapacity);
      ASSERT_TRUE(ring.send(size, static_cast<unsigned char>(i)));
      ASSERT_EQ(ring.reader.peek().size(), size);
      ring.reader.release();
      if (random() % 2 == 0) {
        ring.writer.noteAnswer();
      }
    }
  }
}

TEST_P(FrameRing, OffersMoreRoomWhenThereIsSome) {
  Ring ring(1024, GetParam());
  EXPECT_EQ(ring.writer.reserve(8, 100).size(), 100U);
  ring.writer.commit(0);
  EXPECT_EQ(ring.writer.reserve(8, 10000).size(), maxLaneFrameBytes(1024));
  ring.writer.commit(16);
  const auto frame = ring.reader.peek();
  EXPECT_EQ(frame.size(), 16U);
}

TEST_P(FrameRing, AReleaseReportsAWriterWithoutRoomOnce) {
  Ring ring(1024, GetParam());
  const std::size_t largest = maxLaneFrameBytes(1024);
  ASSERT_TRUE(ring.send(largest, 1));
  ASSERT_TRUE(ring.send(largest, 2));
  ring.reader.peek();
  EXPECT_FALSE(ring.reader.release());  // there was room
  while (ring.send(largest, 3)) {
  }
  ring.reader.peek();
  EXPECT_TRUE(ring.reader.release());
  ring.reader.peek();
  EXPECT_FALSE(ring.reader.release());  // the writer has not looked again
}

TEST_P(FrameRing, MisuseIsABug) {
  Ring ring(1024, GetParam());
  EXPECT_THROW(ring.writer.commit(1), std::logic_error);
  EXPECT_THROW(ring.writer.reserve(0, 10), std::logic_error);
  EXPECT_THROW(ring.writer.reserve(maxLaneFrameBytes(1024) + 1, 1024), std::logic_error);
  EXPECT_THROW(ring.reader.release(), std::logic_error);
  const auto room = ring.writer.reserve(1, 8);
  EXPECT_THROW(ring.writer.commit(room.size() + 1), std::logic_error);
}

// The ends notice the value of a stray write to the shared words, or continue: no access leaves the ring.
TEST(FrameRingByCount, NoticesCountsThatCannotBe) {
  for (const std::uint64_t written : {std::uint64_t{3}, std::uint64_t{2048}, ~std::uint64_t{0} - 7}) {
    Ring ring(1024, Publish::kCount);
    ring.words.written.store(written);
    EXPECT_TRUE(ring.reader.peek().empty());
    EXPECT_TRUE(ring.reader.isBroken()) << written;
    EXPECT_TRUE(ring.reader.peek().empty());
  }
}

TEST_P(FrameRing, NoticesReleasesThatCannotBe) {
  for (const std::uint64_t released : {std::uint64_t{3}, std::uint64_t{4096}, ~std::uint64_t{0} - 7}) {
    Ring ring(1024, GetParam());
    for (int i = 0; i < 4; ++i) {
      ring.send(100, 1);
    }
    ring.words.released.store(released);
    while (!ring.writer.reserve(200, 200).empty()) {
      ring.writer.commit(200);
    }
    EXPECT_TRUE(ring.writer.isBroken()) << released;
  }
}

TEST_P(FrameRing, NoticesHeadersThatCannotBe) {
  std::vector<RingHeader> bad = {
      {2000, kFrame},      {16, 0},     {16, 12345},   {0xffffffff, kFrame},
      {0xfffffff8, kSkip}, {0, kFrame}, {1016, kSkip},  // a reader that skips the whole ring would skip it for ever
      {16, kSkip}};                                     // not up to the end
  if (GetParam() == Publish::kCount) {
    bad.push_back({64, kFrame});  // more than was written
    bad.push_back({0, 0});
  }
  for (const RingHeader& header : bad) {
    Ring ring(1024, GetParam());
    ring.send(16, 1);
    std::memcpy(ring.bytes(), &header, sizeof(header));
    EXPECT_TRUE(ring.reader.peek().empty());
    EXPECT_TRUE(ring.reader.isBroken()) << header.bytes << " " << header.kind;
  }
}

TEST_P(FrameRing, SurvivesRandomCorruption) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    Ring ring(512, GetParam());
    for (int step = 0; step < 200; ++step) {
      if (random() % 10 == 0) {
        ring.bytes()[random() % 512] = static_cast<std::byte>(random());
      }
      ring.send(1 + random() % 100, 1);
      if (const auto frame = ring.reader.peek(); !frame.empty()) {
        ASSERT_GE(frame.data(), ring.bytes());
        ASSERT_LE(frame.data() + frame.size(), ring.bytes() + 512);
        ring.reader.release();
      }
    }
  }
}

// Behind the last frame lies a payload of the round before, with headers in it.
TEST(FrameRingByHeader, PayloadsOfEarlierRoundsAreNoHeaders) {
  Ring ring(4096, Publish::kHeader);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::size_t size = 8 * (1 + random() % 120);
    const auto room = ring.writer.reserve(size, size);
    ASSERT_EQ(room.size(), size);
    for (std::size_t at = 0; at < size; at += sizeof(RingHeader)) {
      const RingHeader header{24, at % 16 == 0 ? kFrame : kSkip};
      std::memcpy(room.data() + at, &header, sizeof(header));
    }
    ASSERT_TRUE(ring.reader.peek().empty());
    ring.writer.commit(size);
    ASSERT_EQ(ring.reader.peek().size(), size);
    ring.reader.release();
    ASSERT_TRUE(ring.reader.peek().empty());
  }
}

INSTANTIATE_TEST_SUITE_P(EachWay, FrameRing, ::testing::Values(Publish::kCount, Publish::kHeader),
                         [](const auto& each) { return each.param == Publish::kCount ? "ByCount" : "ByHeader"; });

}  // namespace
}  // namespace shardwire::internal
