// Slices, the search for boxes, and the grid of covered cells, each against plain sets of elements: first random
// slices, empty boxes and texts, then overlapping boxes, then gaps, overlaps, and cases with too much memory.
#include "ops/plan/slice_math.h"

#include <gtest/gtest.h>

#include "ops/plan/box_list.h"
#include "ops/plan/cover_grid.h"
#include "tests/support/random.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::Random;

constexpr std::int64_t kExtent = 6;

Slice randomBox(Random& random, int numDims) {
  Slice box{Dims::filled(numDims, 0), Dims::filled(numDims, 0)};
  for (int d = 0; d < numDims; ++d) {
    box.offset[d] = random.between(0, kExtent - 1);
    box.shape[d] = random.between(1, kExtent - box.offset[d]);
  }
  return box;
}

// One flag per element of the cube [0, kExtent)^numDims.
std::vector<int> elementsOf(const Slice& box) {
  const int numDims = box.offset.size();
  std::vector<int> flags;
  std::size_t total = 1;
  for (int d = 0; d < numDims; ++d) {
    total *= kExtent;
  }
  for (std::size_t flat = 0; flat < total; ++flat) {
    std::size_t rest = flat;
    bool isInside = true;
    for (int d = numDims - 1; d >= 0; --d) {
      const auto at = static_cast<std::int64_t>(rest % kExtent);
      rest /= kExtent;
      isInside = isInside && at >= box.offset[d] && at < box.offset[d] + box.shape[d];
    }
    flags.push_back(isInside ? 1 : 0);
  }
  return flags;
}

TEST(SliceMath, AgreesWithSetsOfElements) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const int numDims = static_cast<int>(random.between(0, 3));
    const Slice a = randomBox(random, numDims);
    const Slice b = randomBox(random, numDims);
    const std::vector<int> inA = elementsOf(a);
    const std::vector<int> inB = elementsOf(b);
    bool shareAny = false;
    for (std::size_t e = 0; e < inA.size(); ++e) {
      shareAny = shareAny || (inA[e] & inB[e]) != 0;
    }
    EXPECT_EQ(doOverlap(a, b), shareAny);
  }
}

TEST(SliceMath, HandlesEmptyBoxesAndNoDimensions) {
  const Slice empty{{2, 3}, {0, 4}};
  const Slice box{{1, 1}, {2, 2}};
  EXPECT_TRUE(isEmpty(empty));
  EXPECT_FALSE(isEmpty(box));
  EXPECT_FALSE(doOverlap(empty, Slice{{0, 0}, {9, 9}}));
  const Slice scalar{};
  EXPECT_FALSE(isEmpty(scalar));
  EXPECT_TRUE(doOverlap(scalar, scalar));
}

TEST(SliceMath, PrintsRanges) {
  EXPECT_EQ(toString(Slice{{0, 4}, {2, 4}}), "[0:2, 4:8]");
  EXPECT_EQ(toString(Slice{}), "[]");
}

TEST(BoxSearch, FindsExactlyTheBoxesThatOverlap) {
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    const int numDims = static_cast<int>(random.between(0, 3));
    BoxList boxes;
    boxes.reset(numDims);
    std::vector<std::uint32_t> members;
    for (std::uint32_t b = 0; b < 20; ++b) {
      BoxRow row;
      rowOf(randomBox(random, numDims), row.data());
      boxes.add(row.data());
      if (random.chance(80)) {
        members.push_back(b);
      }
    }
    BoxSearch search;
    search.build(boxes, members, numDims == 0 ? 0 : static_cast<int>(random.between(0, numDims - 1)));
    BoxRow query;
    rowOf(randomBox(random, numDims), query.data());
    std::vector<std::uint32_t> found;
    search.forEachOverlap(query.data(), [&found](std::uint32_t member) { found.push_back(member); });
    std::sort(found.begin(), found.end());
    std::vector<std::uint32_t> expected;
    for (const std::uint32_t member : members) {
      if (rowsOverlap(numDims, query.data(), boxes[member])) {
        expected.push_back(member);
      }
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(CoverGrid, KnowsGapsAndOverlaps) {
  Random random(3);
  int numGaps = 0;
  int numOverlaps = 0;
  for (int i = 0; i < 1000; ++i) {
    const int numDims = static_cast<int>(random.between(0, 3));
    BoxList boxes;
    boxes.reset(numDims);
    std::vector<int> counts;
    for (std::int64_t b = random.between(1, 5); b > 0; --b) {
      const Slice box = randomBox(random, numDims);
      BoxRow row;
      rowOf(box, row.data());
      boxes.add(row.data());
      const std::vector<int> inBox = elementsOf(box);
      counts.resize(inBox.size(), 0);
      for (std::size_t e = 0; e < counts.size(); ++e) {
        counts[e] += inBox[e];
      }
    }
    CoverGrid grid;
    grid.build(boxes);
    ASSERT_TRUE(grid.isUsable());
    const Slice query = randomBox(random, numDims);
    const std::vector<int> inQuery = elementsOf(query);
    bool hasGap = false;
    bool hasOverlap = false;
    for (std::size_t e = 0; e < counts.size(); ++e) {
      hasGap = hasGap || (inQuery[e] == 1 && counts[e] == 0);
      hasOverlap = hasOverlap || (inQuery[e] == 1 && counts[e] > 1);
    }
    numGaps += hasGap ? 1 : 0;
    numOverlaps += hasOverlap ? 1 : 0;
    BoxRow row;
    rowOf(query, row.data());
    const CoverGrid::Cover cover = grid.coverOf(row.data());
    EXPECT_EQ(cover.hasGap, hasGap);
    EXPECT_EQ(cover.hasOverlap, hasOverlap);
    EXPECT_EQ(grid.coversAll(Dims::filled(numDims, kExtent)), *std::min_element(counts.begin(), counts.end()) > 0);
  }
  EXPECT_GT(numGaps, 100);
  EXPECT_GT(numOverlaps, 100);
}

TEST(CoverGrid, DeclinesWhatWouldTakeTooMuchMemory) {
  BoxList boxes;
  boxes.reset(3);
  for (std::int64_t i = 0; i < 60; ++i) {
    const BoxRow row{i, i * 2, i * 3, i + 100, i * 2 + 130, i * 3 + 190};
    boxes.add(row.data());
  }
  CoverGrid grid;
  grid.build(boxes);
  EXPECT_FALSE(grid.isUsable());
  EXPECT_TRUE(grid.hasOverlap());
  EXPECT_FALSE(grid.coversAll({1, 1, 1}));
}

}  // namespace
}  // namespace shardwire::internal
