// Copies, casts and sums at every distance of the destination from the source, in steps of a line modulo a page, with
// every way of storing large moves, on every instruction set: the bytes do not depend on any of these.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "ops/boxes/cast_box.h"
#include "ops/boxes/copy_box.h"
#include "ops/boxes/reduce_box.h"
#include "ops/reduce/isa_kernels.h"
#include "tests/ops/reduce/naive_numeric.h"
#include "tests/support/random_boxes.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kPage = 4096, kElems = 5000, kBytes = kElems * sizeof(float), kRoom = kBytes + 2 * kPage;

// Calls check(dst, a, b) for every distance, way of storing and instruction set. a and b begin on a page.
template <typename Check>
void forEachDistance(const Check& check) {
  std::vector<std::byte> memory(3 * (kRoom + kPage) + kPage);
  std::byte* const first = memory.data() + -reinterpret_cast<std::uintptr_t>(memory.data()) % kPage;
  std::byte* const second = first + (kRoom + kPage) / kPage * kPage;
  std::byte* const third = second + (kRoom + kPage) / kPage * kPage;
  for (std::size_t i = 0; i < kElems; ++i) {
    const float a = static_cast<float>(i) * 0.37f, b = static_cast<float>(i % 97) - 48.5f;
    std::memcpy(first + i * sizeof a, &a, sizeof a);
    std::memcpy(second + i * sizeof b, &b, sizeof b);
  }
  for (const Isa isa : isasHere()) {
    useKernelsForTest(isa);
    for (const RowStore store : {RowStore::kAhead, RowStore::kStream, RowStore::kStreamPair}) {
      useLargeStore(store);
      for (std::size_t distance = 0; distance < kPage; distance += 64) {
        SCOPED_TRACE(::testing::Message()
                     << kernels().name << ", store " << static_cast<int>(store) << ", " << distance);
        std::memset(third, 0, kRoom);
        ASSERT_NO_FATAL_FAILURE(check(third + distance, first, second));
      }
    }
  }
  useLargeStore(RowStore::kPlain);
}

TEST(Distances, ACopyCopies) {
  forEachDistance([](std::byte* dst, std::byte* a, std::byte*) {
    copyBox({dst, {1}}, {a, {1}}, {static_cast<std::int64_t>(kBytes)}, 1, StoreHint::kStream);
    ASSERT_EQ(std::memcmp(dst, a, kBytes), 0);
    ASSERT_EQ(dst[kBytes], std::byte{0});
  });
}

TEST(Distances, ACastAndBackKeepsTheValues) {
  forEachDistance([](std::byte* dst, std::byte* a, std::byte*) {
    castBox({dst, {8}}, DType::kFloat64, {a, {4}}, DType::kFloat32, {kElems / 2}, StoreHint::kStream);
    for (std::size_t i = 0; i < kElems / 2; ++i) {
      float wanted = 0;
      double got = 0;
      std::memcpy(&wanted, a + i * sizeof wanted, sizeof wanted);
      std::memcpy(&got, dst + i * sizeof got, sizeof got);
      ASSERT_EQ(got, static_cast<double>(wanted)) << i;
    }
  });
}

TEST(Distances, ASumAdds) {
  forEachDistance([](std::byte* dst, std::byte* a, std::byte* b) {
    const std::vector<const std::byte*> sources = {a, b, a};
    for (const std::size_t numSources : {2, 3}) {
      reduceContiguous(dst, {sources.data(), numSources}, kElems, DType::kFloat32, ReduceOp::kSum, StoreHint::kStream);
      for (std::size_t i = 0; i < kElems; i += 7) {
        float x = 0, y = 0, got = 0;
        std::memcpy(&x, a + i * sizeof x, sizeof x);
        std::memcpy(&y, b + i * sizeof y, sizeof y);
        std::memcpy(&got, dst + i * sizeof got, sizeof got);
        ASSERT_EQ(got, numSources == 2 ? x + y : x + y + x) << i;
      }
    }
  });
}

}  // namespace
}  // namespace shardwire::internal
