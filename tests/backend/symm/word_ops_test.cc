// Atomic operations on elements of every dtype against plain arithmetic.
#include "backend/symm/word_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/boxes/reduce_box.h"
#include "tests/support/random.h"

namespace shardwire::internal {
namespace {

constexpr std::array<std::pair<WordOp, ReduceOp>, 7> kArithmetic = {{{WordOp::kAdd, ReduceOp::kSum},
                                                                     {WordOp::kMul, ReduceOp::kProd},
                                                                     {WordOp::kMin, ReduceOp::kMin},
                                                                     {WordOp::kMax, ReduceOp::kMax},
                                                                     {WordOp::kAnd, ReduceOp::kBand},
                                                                     {WordOp::kOr, ReduceOp::kBor},
                                                                     {WordOp::kXor, ReduceOp::kBxor}}};

std::uint64_t randomElement(testing::Random& random, DType dtype) {
  const std::uint64_t bits = random.bits();
  const std::size_t bytes = elementBytes(dtype);
  if (dtype == DType::kBool) {
    return bits & 1;
  }
  return bytes >= 8 ? bits : bits & ((std::uint64_t{1} << (8 * bytes)) - 1);
}

TEST(WordOps, GiveTheBitsOfAReductionOfTwo) {
  const std::uint64_t seed = testing::numberFromEnvironment("SHARDWIRE_ORACLE_SEED", 20260);
  SCOPED_TRACE("SHARDWIRE_ORACLE_SEED=" + std::to_string(seed));
  testing::Random random(seed);
  int numPairs = 0;
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const auto& [op, reduction] : kArithmetic) {
      EXPECT_EQ(supportsWordOp(dtype, op), elementBytes(dtype) <= 8 && supportsReduction(dtype, reduction));
      if (!supportsWordOp(dtype, op)) {
        continue;
      }
      ++numPairs;
      for (int round = 0; round < 50; ++round) {
        const std::uint64_t left = randomElement(random, dtype);
        const std::uint64_t right = randomElement(random, dtype);
        std::uint64_t expected = 0;
        const std::array<const std::byte*, 2> sources = {reinterpret_cast<const std::byte*>(&left),
                                                         reinterpret_cast<const std::byte*>(&right)};
        reduceContiguous(reinterpret_cast<std::byte*>(&expected), sources, 1, dtype, reduction);
        alignas(8) std::array<std::byte, 24> memory;
        memory.fill(std::byte{0x5a});
        std::memcpy(memory.data() + 8, &left, elementBytes(dtype));
        EXPECT_EQ(applyWord(memory.data() + 8, dtype, op, right), left);
        std::array<std::byte, 24> wanted;
        wanted.fill(std::byte{0x5a});
        std::memcpy(wanted.data() + 8, &expected, elementBytes(dtype));
        EXPECT_EQ(memory, wanted) << dtypeName(dtype) << " " << wordOpName(op) << " " << left << " " << right;
      }
    }
  }
  EXPECT_GT(numPairs, 80);
}

TEST(WordOps, SwapsAndStores) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    if (elementBytes(dtype) > 8) {
      EXPECT_FALSE(supportsWordOp(dtype, WordOp::kFetch));
      continue;
    }
    alignas(8) std::array<std::byte, 8> memory{};
    applyWord(memory.data(), dtype, WordOp::kSet, 5);
    EXPECT_EQ(applyWord(memory.data(), dtype, WordOp::kFetch, 0), 5U);
    EXPECT_EQ(applyWord(memory.data(), dtype, WordOp::kSwap, 6), 5U);
    EXPECT_EQ(applyWord(memory.data(), dtype, WordOp::kCompareSwap, 9, 5), 6U);  // not stored
    EXPECT_EQ(applyWord(memory.data(), dtype, WordOp::kCompareSwap, 9, 6), 6U);
    EXPECT_EQ(applyWord(memory.data(), dtype, WordOp::kFetch, 0), 9U);
  }
}

TEST(WordOps, EachTypeAndOperationIsOfItsKind) {
  const std::vector<DType> integers = {DType::kInt8,  DType::kInt16,  DType::kInt32,  DType::kInt64,
                                       DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64};
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    const bool isOneOfThem = std::ranges::find(integers, dtype) != integers.end();
    EXPECT_EQ(isInteger(dtype), isOneOfThem) << dtypeName(dtype);
    EXPECT_EQ(commutes(dtype, WordOp::kAdd), isOneOfThem || dtype == DType::kBool) << dtypeName(dtype);
    EXPECT_FALSE(commutes(dtype, WordOp::kSwap)) << dtypeName(dtype);
  }
  for (const auto& [op, reduction] : kArithmetic) {
    EXPECT_EQ(wordOpOf(reduction), op);
  }
  EXPECT_EQ(wordOpOf(ReduceOp::kNone), std::nullopt);
}

TEST(WordOps, IntegersAreComparedBySign) {
  std::int16_t minus = -3;
  const auto seen = loadInteger(reinterpret_cast<const std::byte*>(&minus), DType::kInt16);
  EXPECT_EQ(static_cast<std::int64_t>(seen), -3);
  EXPECT_EQ(integerText(DType::kInt16, seen), "-3");
  EXPECT_TRUE(compareIntegers(DType::kInt16, seen, Comparison::kLt, 0));
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_TRUE(compareIntegers(DType::kUInt64, most, Comparison::kGt, 0));
  EXPECT_FALSE(compareIntegers(DType::kInt64, most, Comparison::kGt, 0));
  // eq, ne, gt, ge, lt, le of 3 with 2, 3, 4.
  constexpr std::array<std::array<bool, 3>, kNumComparisons> kWanted = {{{false, true, false},
                                                                         {true, false, true},
                                                                         {true, false, false},
                                                                         {true, true, false},
                                                                         {false, false, true},
                                                                         {false, true, true}}};
  for (int c = 0; c < kNumComparisons; ++c) {
    for (std::uint64_t right = 2; right <= 4; ++right) {
      EXPECT_EQ(compareIntegers(DType::kUInt32, 3, static_cast<Comparison>(c), right),
                kWanted[static_cast<std::size_t>(c)][right - 2]);
    }
  }
}

TEST(WordOps, OfABoxGoToEachOfItsElements) {
  // Columns 1 and 3 of a 3 by 4 table.
  std::array<std::int32_t, 12> table{};
  const std::array<std::int32_t, 2> operands = {10, 20};
  const StridedBox to{reinterpret_cast<std::byte*>(table.data() + 1), {16, 8}};
  std::array<std::int32_t, 2> values = operands;
  const StridedBox from{reinterpret_cast<std::byte*>(values.data()), {0, 4}};  // the same for each row
  applyWords(to, from, {3, 2}, DType::kInt32, WordOp::kAdd);
  applyWords(to, from, {3, 2}, DType::kInt32, WordOp::kAdd);
  EXPECT_EQ(table, (std::array<std::int32_t, 12>{0, 20, 0, 40, 0, 20, 0, 40, 0, 20, 0, 40}));
}

}  // namespace
}  // namespace shardwire::internal
