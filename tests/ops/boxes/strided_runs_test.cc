// Runs and segments of boxes of random geometry against a loop over single elements.
#include "ops/boxes/strided_runs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/support/random_boxes.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kRunElemBytes[] = {1, 2, 4, 8, 16, 3};

TEST(StridedRuns, BoxOfIsAtTheOffset) {
  std::vector<float> memory(100);
  const TensorView view{reinterpret_cast<std::byte*>(memory.data()), DType::kFloat32, {5, 7}, {14, 2}};
  const StridedBox box = boxOf(view, {2, 3});
  EXPECT_EQ(box.bytes, reinterpret_cast<std::byte*>(memory.data() + 2 * 14 + 3 * 2));
  EXPECT_EQ(box.byteStrides, (Dims{56, 8}));
}

TEST(SegmentCursor, CoversTheBoxOnceInRowMajorOrder) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const std::size_t elemBytes = kRunElemBytes[pick(random, 0, 5)];
    const Dims shape = randomShape(random, static_cast<int>(pick(random, 0, 5)), 5000);
    const std::size_t maxBytes = static_cast<std::size_t>(pick(random, 1, 3000));
    const Dims strides = contiguousStrides(shape);
    std::int64_t nextElem = 0;  // row-major number of the first element not yet covered
    for (SegmentCursor cursor(shape, elemBytes, maxBytes); !cursor.done(); cursor.next()) {
      const std::int64_t numElems = numElements(cursor.shape());
      ASSERT_EQ(cursor.bytes(), static_cast<std::size_t>(numElems) * elemBytes);
      ASSERT_TRUE(cursor.bytes() <= maxBytes || numElems == 1);
      forEachIndex(cursor.shape(), [&](const Dims& index) {
        std::int64_t number = 0;
        for (int dim = 0; dim < shape.size(); ++dim) {
          ASSERT_LT(cursor.offset()[dim] + index[dim], shape[dim]);
          number += (cursor.offset()[dim] + index[dim]) * strides[dim];
        }
        ASSERT_EQ(number, nextElem);
        ++nextElem;
      });
    }
    ASSERT_EQ(nextElem, numElements(shape)) << toString(shape) << " by " << maxBytes;
  }
}

TEST(SegmentCursor, CutsIntoEqualParts) {
  SegmentCursor cursor({101, 8}, 1, 100 * 8);
  EXPECT_EQ(cursor.shape(), (Dims{51, 8}));
  cursor.next();
  EXPECT_EQ(cursor.shape(), (Dims{50, 8}));
  EXPECT_EQ(cursor.offset(), (Dims{51, 0}));
  cursor.next();
  EXPECT_TRUE(cursor.done());
  EXPECT_TRUE(SegmentCursor().done());
}

TEST(StridedRuns, RunsAreTheElementsInRowMajorOrder) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const std::size_t elemBytes = kRunElemBytes[pick(random, 0, 5)];
    const Dims shape = randomShape(random, static_cast<int>(pick(random, 0, 6)), 3000);
    const Arena arena = randomArena(random, shape, elemBytes, true);
    std::vector<const std::byte*> elements, expected;
    std::size_t lastBytes = 0;
    std::uint64_t numRuns = 0;
    forEachRun(arena.box, shape, elemBytes, [&](std::byte* run, std::size_t bytes) {
      ASSERT_EQ(bytes % elemBytes, 0u);
      for (std::size_t i = 0; i < bytes; i += elemBytes) {
        elements.push_back(run + i);
      }
      lastBytes = bytes;
      ++numRuns;
    });
    forEachIndex(shape, [&](const Dims& index) { expected.push_back(arena.box.bytes + offsetOf(arena.box, index)); });
    ASSERT_TRUE(elements == expected);
    std::size_t runBytes = 0;
    ASSERT_EQ(countRuns(arena.box, shape, elemBytes, &runBytes), numRuns);
    ASSERT_EQ(runBytes, lastBytes);
  }
}

TEST(StridedRuns, RunsAreAsLongAsTheStridesAllow) {
  std::size_t runBytes = 0;
  EXPECT_EQ(countRuns({nullptr, {64, 16, 4}}, {2, 4, 4}, 4, &runBytes), 1u);
  EXPECT_EQ(runBytes, 128u);
  EXPECT_EQ(countRuns({nullptr, {128, 16, 4}}, {2, 4, 4}, 4, &runBytes), 2u);
  EXPECT_EQ(runBytes, 64u);
  EXPECT_EQ(countRuns({nullptr, {4, 16}}, {4, 4}, 4, &runBytes), 16u);
  EXPECT_EQ(runBytes, 4u);
  EXPECT_EQ(countRuns({nullptr, {4, 4}}, {0, 1}, 4), 0u);
}

}  // namespace
}  // namespace shardwire::internal
