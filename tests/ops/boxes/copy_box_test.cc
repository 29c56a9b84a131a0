// Copies and packing of random geometry against a loop over single elements.
#include "ops/boxes/copy_box.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "ops/reduce/isa_kernels.h"
#include "tests/support/random_boxes.h"

namespace shardwire::internal {
namespace {

std::vector<std::byte> expectedCopy(const Arena& dst, const Arena& src, const Dims& shape, std::size_t elemBytes) {
  std::vector<std::byte> expected = dst.memory;
  const std::ptrdiff_t base = dst.box.bytes - dst.memory.data();
  forEachIndex(shape, [&](const Dims& index) {
    std::memcpy(expected.data() + base + offsetOf(dst.box, index), src.box.bytes + offsetOf(src.box, index), elemBytes);
  });
  return expected;
}

constexpr std::size_t kElemBytes[] = {1, 2, 4, 8, 16};
constexpr StoreHint kHints[] = {StoreHint::kAuto, StoreHint::kCached, StoreHint::kStream};

TEST(CopyBox, MatchesElementLoopOnRandomGeometry) {
  for (const Isa isa : isasHere()) {
    useKernelsForTest(isa);
    for (std::uint64_t seed = 0; seed < 600; ++seed) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " isa " << kernels().name);
      Random random(seed);
      const std::size_t elemBytes = kElemBytes[pick(random, 0, 4)];
      const Dims shape = randomShape(random, static_cast<int>(pick(random, 0, seed % 10 == 0 ? 16 : 5)), 40000);
      Arena dst = randomArena(random, shape, elemBytes, false);
      const Arena src = randomArena(random, shape, elemBytes, true);
      const std::vector<std::byte> expected = expectedCopy(dst, src, shape, elemBytes);
      copyBox(dst.box, src.box, shape, elemBytes, kHints[seed % 3]);
      ASSERT_TRUE(dst.memory == expected)
          << "shape " << toString(shape) << " dst strides " << toString(dst.box.byteStrides) << " src strides "
          << toString(src.box.byteStrides) << " elements of " << elemBytes;
    }
  }
}

// Rows long enough for every path of the row kernels: one stream, two streams, several pieces, ragged ends.
TEST(CopyBox, MatchesElementLoopOnLongRows) {
  for (const Isa isa : isasHere()) {
    useKernelsForTest(isa);
    for (const std::int64_t rowBytes :
         {64, 255, 256, 511, 512, 1000, 1024, 1100, 4096, 8191, 8192, 8193, 16383, 16384, 40001, 300000}) {
      for (const StoreHint hint : kHints) {
        SCOPED_TRACE(::testing::Message()
                     << "row " << rowBytes << " isa " << kernels().name << " hint " << static_cast<int>(hint));
        Random random(static_cast<std::uint64_t>(rowBytes));
        const Dims shape{5, rowBytes};
        Arena dst = randomArena(random, shape, 1, false);
        Arena src = randomArena(random, shape, 1, false);
        dst.memory.resize(static_cast<std::size_t>(rowBytes * 6 + 400));
        src.memory.resize(dst.memory.size());
        dst.box = {dst.memory.data() + pick(random, 0, 64), {rowBytes + 33, 1}};
        src.box = {src.memory.data() + pick(random, 0, 64), {rowBytes + 17, 1}};
        const std::vector<std::byte> expected = expectedCopy(dst, src, shape, 1);
        copyBox(dst.box, src.box, shape, 1, hint);
        ASSERT_TRUE(dst.memory == expected);
      }
    }
  }
}

TEST(CopyBox, IsNothingWhenEmptyOrTheSame) {
  std::vector<std::byte> memory(16, std::byte{7});
  const StridedBox box{memory.data(), {4, 1}};
  copyBox(box, box, {2, 4}, 1);
  copyBox({nullptr, {4, 1}}, {nullptr, {4, 1}}, {0, 4}, 1);
  EXPECT_EQ(memory, std::vector<std::byte>(16, std::byte{7}));
}

TEST(CopyBox, PackThenUnpackRestoresTheBox) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const std::size_t elemBytes = kElemBytes[pick(random, 0, 4)];
    const Dims shape = randomShape(random, static_cast<int>(pick(random, 0, 5)), 20000);
    const Arena src = randomArena(random, shape, elemBytes, true);
    const std::size_t bytes = static_cast<std::size_t>(numElements(shape)) * elemBytes;
    std::vector<std::byte> packed(bytes), expectedPacked;
    forEachIndex(shape, [&](const Dims& index) {
      const std::byte* element = src.box.bytes + offsetOf(src.box, index);
      expectedPacked.insert(expectedPacked.end(), element, element + elemBytes);
    });
    ASSERT_EQ(packBox(packed.data(), src.box, shape, elemBytes), bytes);
    ASSERT_TRUE(packed == expectedPacked);

    Arena dst = randomArena(random, shape, elemBytes, false);
    const std::vector<std::byte> expected = expectedCopy(dst, src, shape, elemBytes);
    ASSERT_EQ(unpackBox(dst.box, packed.data(), shape, elemBytes), bytes);
    ASSERT_TRUE(dst.memory == expected);
  }
}

}  // namespace
}  // namespace shardwire::internal
