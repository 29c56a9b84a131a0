#include "backend/memory/small_blocks.h"

#include <gtest/gtest.h>

#include <set>

namespace shardwire::internal {
namespace {

TEST(SmallBlocks, ClassesCoverEverySizeTightly) {
  for (std::uint64_t bytes = 0; bytes <= kMaxSmallBytes; ++bytes) {
    const int sizeClass = sizeClassOf(bytes);
    ASSERT_GE(sizeClass, 0);
    ASSERT_LT(sizeClass, kNumSizeClasses);
    ASSERT_GE(sizeClassBytes(sizeClass), bytes);
    ASSERT_EQ(sizeClassBytes(sizeClass) % 64, 0U);
    if (sizeClass > 0) {
      ASSERT_LT(sizeClassBytes(sizeClass - 1), std::max<std::uint64_t>(bytes, 1)) << "a smaller class would do";
    }
    if (bytes > 1024) {
      ASSERT_LE(sizeClassBytes(sizeClass), bytes + bytes / 4);
    }
  }
  EXPECT_EQ(sizeClassBytes(kNumSizeClasses - 1), kMaxSmallBytes);
}

TEST(SmallBlocks, HandsOutEachBlockOfASlabOnce) {
  for (int sizeClass = 0; sizeClass < kNumSizeClasses; ++sizeClass) {
    SmallBlocks blocks;
    EXPECT_EQ(blocks.take(sizeClass), std::nullopt);
    blocks.addSlab(3 * kSlabBytes, sizeClass);
    std::set<std::uint64_t> offsets;
    while (const auto offset = blocks.take(sizeClass)) {
      ASSERT_GE(*offset, 3 * kSlabBytes);
      ASSERT_LE(*offset + sizeClassBytes(sizeClass), 4 * kSlabBytes);
      ASSERT_EQ((*offset - 3 * kSlabBytes) % sizeClassBytes(sizeClass), 0U);
      ASSERT_TRUE(offsets.insert(*offset).second);
    }
    ASSERT_EQ(offsets.size(), kSlabBytes / sizeClassBytes(sizeClass));
    ASSERT_TRUE(blocks.give(*offsets.rbegin()));
    EXPECT_EQ(blocks.take(sizeClass), *offsets.rbegin());
  }
}

TEST(SmallBlocks, KnowsWhatIsNotInUse) {
  SmallBlocks blocks;
  const int sizeClass = sizeClassOf(100);
  blocks.addSlab(0, sizeClass);
  const auto offset = blocks.take(sizeClass);
  ASSERT_TRUE(offset);
  EXPECT_FALSE(blocks.give(*offset + 64));                         // inside the block
  EXPECT_FALSE(blocks.give(*offset + sizeClassBytes(sizeClass)));  // never taken
  EXPECT_FALSE(blocks.give(5 * kSlabBytes));                       // no slab there
  const auto freed = blocks.give(*offset);
  ASSERT_TRUE(freed);
  EXPECT_EQ(freed->bytes, sizeClassBytes(sizeClass));
  EXPECT_FALSE(blocks.give(*offset));  // twice
}

TEST(SmallBlocks, GivesEmptySlabsUpButTheLastWithRoom) {
  SmallBlocks blocks;
  const int sizeClass = sizeClassOf(kMaxSmallBytes);
  blocks.addSlab(0, sizeClass);
  blocks.addSlab(kSlabBytes, sizeClass);
  const auto first = blocks.take(sizeClass);
  ASSERT_TRUE(first);
  const auto freed = blocks.give(*first);
  ASSERT_TRUE(freed);
  EXPECT_EQ(freed->emptySlab, 0U);
  const auto second = blocks.take(sizeClass);
  ASSERT_TRUE(second);
  EXPECT_EQ(blocks.give(*second)->emptySlab, std::nullopt);
  EXPECT_TRUE(blocks.take(sizeClass));  // of the slab that stayed
}

}  // namespace
}  // namespace shardwire::internal
