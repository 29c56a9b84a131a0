#include "ops/boxes/view_overlap.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/random.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::Random;

std::byte* at(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // never read
}

std::set<std::uintptr_t> bytesOf(const TensorView& view) {
  std::set<std::uintptr_t> bytes;
  const std::int64_t count = numElements(view.shape);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (int d = view.shape.size() - 1; d >= 0; --d) {
      offset += rest % view.shape[d] * view.strides[d];
      rest /= view.shape[d];
    }
    for (std::size_t b = 0; b < elementBytes(view.dtype); ++b) {
      bytes.insert(reinterpret_cast<std::uintptr_t>(view.bytes) +
                   static_cast<std::uintptr_t>(offset * static_cast<std::int64_t>(elementBytes(view.dtype))) + b);
    }
  }
  return bytes;
}

bool meet(const TensorView& a, const TensorView& b) {
  const auto left = bytesOf(a);
  const auto right = bytesOf(b);
  return std::any_of(left.begin(), left.end(), [&](std::uintptr_t byte) { return right.contains(byte); });
}

TensorView randomView(Random& random) {
  constexpr DType kTypes[] = {DType::kUInt8, DType::kInt16, DType::kFloat32, DType::kComplex64};
  TensorView view;
  view.dtype = kTypes[random.between(0, 3)];
  view.bytes = at(static_cast<std::uintptr_t>(4096 + random.between(0, 60) * random.between(1, 8)));
  const auto dims = static_cast<int>(random.between(0, 3));
  view.shape = Dims::filled(dims, 1);
  view.strides = Dims::filled(dims, 1);
  for (int d = 0; d < dims; ++d) {
    view.shape[d] = random.between(0, 20) == 0 ? 0 : random.between(1, 5);
    view.strides[d] = random.between(0, 3) == 0 ? random.between(-9, 9) : random.between(1, 16);
  }
  return view;
}

TEST(ViewOverlap, IsWhatTheBytesSay) {
  constexpr std::uint64_t kSeed = 20;
  Random random(kSeed);
  int shared = 0;
  for (int round = 0; round < 20000; ++round) {
    const TensorView a = randomView(random);
    const TensorView b = randomView(random);
    const bool expected = meet(a, b);
    shared += expected ? 1 : 0;
    ASSERT_EQ(shareMemory(a, b), expected)
        << "seed " << kSeed << ", round " << round << ": " << toString(a.shape) << toString(a.strides) << " at "
        << a.bytes << " and " << toString(b.shape) << toString(b.strides) << " at " << b.bytes;
    ASSERT_EQ(shareMemory(b, a), expected) << "seed " << kSeed << ", round " << round;
  }
  EXPECT_GT(shared, 2000);
  EXPECT_LT(shared, 18000);
}

TEST(ViewOverlap, WithItselfIsWhatTheBytesSay) {
  constexpr std::uint64_t kSeed = 21;
  Random random(kSeed);
  int shared = 0;
  for (int round = 0; round < 20000; ++round) {
    const TensorView view = randomView(random);
    const std::size_t apart = static_cast<std::size_t>(numElements(view.shape)) * elementBytes(view.dtype);
    const bool expected = bytesOf(view).size() < apart;
    shared += expected ? 1 : 0;
    ASSERT_EQ(overlapsItself(view), expected)
        << "seed " << kSeed << ", round " << round << ": " << toString(view.shape) << toString(view.strides);
  }
  EXPECT_GT(shared, 2000);
  EXPECT_LT(shared, 18000);
}

TEST(ViewOverlap, ColumnsOfOneBufferAreApart) {
  // 2^20 rows of 64 columns: found without a walk over the rows.
  const auto columns = [](std::int64_t first, std::int64_t count) {
    return TensorView{at(static_cast<std::uintptr_t>(4096 + 4 * first)), DType::kFloat32, {1 << 20, count}, {64, 1}};
  };
  EXPECT_FALSE(shareMemory(columns(0, 32), columns(32, 32)));
  EXPECT_TRUE(shareMemory(columns(0, 33), columns(32, 32)));
  const std::vector<TensorView> apart = {columns(40, 24), columns(0, 20), columns(20, 20)};
  EXPECT_FALSE(findShared(apart).has_value());
  // The third meets the first, between which lies the second.
  const std::vector<TensorView> third = {columns(0, 20), columns(20, 20), columns(19, 1)};
  EXPECT_EQ(findShared(third), std::pair(std::size_t{0}, std::size_t{2}));
}

TEST(ViewOverlap, FindsTheFirstPairAndIgnoresEmptyViews) {
  const auto piece = [](std::uintptr_t address, std::int64_t elems) {
    return TensorView::contiguous(at(address), DType::kInt32, {elems});
  };
  EXPECT_FALSE(
      findShared(std::vector{piece(4096, 4), piece(4112, 4), piece(4100, 0), piece(0, 0), piece(0, 0)}).has_value());
  EXPECT_EQ(findShared(std::vector{piece(8192, 1), piece(4096, 4), piece(4108, 4)}),
            std::pair(std::size_t{1}, std::size_t{2}));
  EXPECT_EQ(findShared(std::vector{piece(4096, 4), piece(4096, 4)}), std::pair(std::size_t{0}, std::size_t{1}));
}

TEST(ViewOverlap, StridesThatNoMemoryHasAreSeen) {
  const auto view = [](Dims shape, Dims strides) { return TensorView{at(4096), DType::kInt64, shape, strides}; };
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;  // fits as elements, and not as bytes
  EXPECT_TRUE(isAddressable(view({2, 3}, {3, 1})));
  EXPECT_TRUE(isAddressable(view({1, 3}, {kHuge / 2, 1})));
  EXPECT_FALSE(isAddressable(view({1, 3}, {kHuge, 1})));
  EXPECT_FALSE(isAddressable(view({5, 3}, {kHuge / 2, 1})));
  EXPECT_FALSE(isAddressable(view({2, 2}, {kHuge - 1, 1})));
}

TEST(ViewOverlap, OneTensorMayHaveTwoShapes) {
  const TensorView flat = TensorView::contiguous(at(4096), DType::kInt32, {6});
  const TensorView table = TensorView::contiguous(at(4096), DType::kInt32, {2, 3});
  const TensorView turned{at(4096), DType::kInt32, {2, 3}, {1, 2}};
  EXPECT_TRUE(areOneTensor(flat, table));
  EXPECT_FALSE(areOneTensor(flat, turned));
  EXPECT_TRUE(areOneTensor(turned, turned));
  EXPECT_FALSE(areOneTensor(flat, TensorView::contiguous(at(4096), DType::kFloat32, {6})));
  EXPECT_FALSE(areOneTensor(flat, TensorView::contiguous(at(4096), DType::kInt32, {5})));
}

}  // namespace
}  // namespace shardwire::internal
