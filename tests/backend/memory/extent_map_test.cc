#include "backend/memory/extent_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace shardwire::internal {
namespace {

TEST(ExtentMap, TakesTheSmallestThatFits) {
  ExtentMap map(1000);
  const auto a = map.take(100, 1);
  const auto b = map.take(50, 1);
  const auto c = map.take(100, 1);
  ASSERT_TRUE(a && b && c);
  map.give(*b, false);
  EXPECT_EQ(map.take(40, 1), (Extent{b->offset, 40}));  // out of the hole, not of the large rest
}

TEST(ExtentMap, AlignsWithoutLosingWhatLiesBefore) {
  ExtentMap map(1024);
  ASSERT_EQ(map.take(10, 1), (Extent{0, 10}));
  ASSERT_EQ(map.take(64, 256), (Extent{256, 64}));
  EXPECT_EQ(map.take(246, 1), (Extent{10, 246}));
}

TEST(ExtentMap, JoinsNeighboursOfOneKindOnly) {
  ExtentMap map(300);
  ASSERT_TRUE(map.take(300, 1));
  map.give({0, 100}, false);
  map.give({200, 100}, false);
  map.give({100, 100}, true);
  EXPECT_EQ(map.dirtyBytes(), 100U);
  EXPECT_EQ(map.take(200, 1), std::nullopt);  // the dirty extent separates the two
  ASSERT_EQ(map.takeOldestDirty(1000), (Extent{100, 100}));
  map.give({100, 100}, false);
  EXPECT_EQ(map.take(300, 1), (Extent{0, 300}));
}

TEST(ExtentMap, PrefersDirtyExtentsAndGivesTheOldestUpFirst) {
  ExtentMap map(1000);
  ASSERT_TRUE(map.take(700, 1));  // [700, 1000) stays clean
  map.give({600, 50}, true);
  map.give({0, 100}, true);
  map.give({200, 100}, true);
  EXPECT_EQ(map.takeOldestDirty(20), (Extent{600, 20}));
  EXPECT_EQ(map.take(100, 1), (Extent{0, 100}));  // dirty, although the clean rest would fit too
  EXPECT_EQ(map.dirtyBytes(), 130U);
}

TEST(ExtentMap, RefusesRangesThatOverlapFreeOnes) {
  ExtentMap map(100);
  ASSERT_TRUE(map.take(50, 1));
  EXPECT_THROW(map.give({40, 20}, false), std::logic_error);
  EXPECT_THROW(map.give({60, 20}, true), std::logic_error);
}

// Random taking and giving back against a map of every byte.
TEST(ExtentMap, NeverHandsOutAByteTwice) {
  constexpr std::uint64_t kBytes = 4096;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ExtentMap map(kBytes);
    std::vector<char> owned(kBytes, 0);
    std::vector<Extent> taken;
    for (int step = 0; step < 2000; ++step) {
      if (random() % 5 < 3 || taken.empty()) {
        const std::uint64_t alignment = std::uint64_t{1} << random() % 8;
        const std::uint64_t bytes = 1 + random() % 300;
        const auto extent = map.take(bytes, alignment);
        if (!extent) {
          continue;
        }
        ASSERT_EQ(extent->bytes, bytes);
        ASSERT_EQ(extent->offset % alignment, 0U);
        ASSERT_LE(extent->offset + bytes, kBytes);
        for (std::uint64_t i = 0; i < bytes; ++i) {
          ASSERT_EQ(owned[extent->offset + i]++, 0);
        }
        taken.push_back(*extent);
      } else {
        std::swap(taken[random() % taken.size()], taken.back());
        for (std::uint64_t i = 0; i < taken.back().bytes; ++i) {
          --owned[taken.back().offset + i];
        }
        map.give(taken.back(), random() % 2 == 0);
        taken.pop_back();
      }
      if (step % 100 == 99) {  // as the heap does when its cache is full
        while (const auto dirty = map.takeOldestDirty(64)) {
          map.give(*dirty, false);
        }
        ASSERT_EQ(map.dirtyBytes(), 0U);
      }
    }
    for (const Extent& extent : taken) {
      map.give(extent, false);
    }
    while (const auto dirty = map.takeOldestDirty(kBytes)) {
      map.give(*dirty, false);
    }
    EXPECT_EQ(map.take(kBytes, 1), (Extent{0, kBytes}));  // all in one piece again
  }
}

}  // namespace
}  // namespace shardwire::internal
