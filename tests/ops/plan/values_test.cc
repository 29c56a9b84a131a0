// The values of include/shardwire: types.h and status.h.
#include <gtest/gtest.h>

#include <set>
#include <span>
#include <stdexcept>
#include <vector>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire {
namespace {

TEST(Values, KnowEveryDType) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::size_t bytes = elementBytes(dtype);
    EXPECT_TRUE(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16) << i;
    EXPECT_TRUE(names.insert(dtypeName(dtype)).second) << dtypeName(dtype);
    EXPECT_TRUE(supportsReduction(dtype, ReduceOp::kNone));
  }
  EXPECT_EQ(dtypeName(DType::kFloat8E4M3FN), "float8_e4m3fn");
  EXPECT_EQ(elementBytes(DType::kFloat8E8M0FNU), 1U);
  EXPECT_EQ(elementBytes(DType::kBFloat16), 2U);
  EXPECT_EQ(elementBytes(DType::kComplex32), 4U);
  EXPECT_EQ(elementBytes(DType::kComplex128), 16U);
  EXPECT_EQ(dtypeName(DType::kOpaque4), "opaque4");
  EXPECT_EQ(elementBytes(DType::kOpaque16), 16U);
}

TEST(Values, KnowWhichReductionsADTypeHas) {
  EXPECT_TRUE(supportsReduction(DType::kFloat8E5M2, ReduceOp::kSum));
  EXPECT_TRUE(supportsReduction(DType::kBool, ReduceOp::kBxor));
  EXPECT_TRUE(supportsReduction(DType::kUInt64, ReduceOp::kMean));
  EXPECT_TRUE(supportsReduction(DType::kComplex64, ReduceOp::kProd));
  EXPECT_FALSE(supportsReduction(DType::kComplex64, ReduceOp::kMax));
  EXPECT_FALSE(supportsReduction(DType::kFloat32, ReduceOp::kBand));
  EXPECT_FALSE(supportsReduction(DType::kOpaque4, ReduceOp::kSum));
  std::set<std::string_view> names;
  for (int i = 0; i < kNumReduceOps; ++i) {
    EXPECT_TRUE(names.insert(reduceOpName(static_cast<ReduceOp>(i))).second);
  }
  EXPECT_TRUE(names.count("mean") == 1 && names.count("none") == 1);
}

TEST(Values, FindReductionsByBothNames) {
  for (int i = 1; i < kNumReduceOps; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    EXPECT_EQ(reduceOpNamed(reduceOpName(op)), op);
    EXPECT_EQ(reduceOpNamed(torchNameOf(op)), op);
  }
  EXPECT_EQ(reduceOpNamed("product"), ReduceOp::kProd);
  EXPECT_EQ(reduceOpNamed("none"), std::nullopt);
  EXPECT_EQ(reduceOpNames(), "sum, prod, min, max, mean, band, bor, bxor");
}

TEST(Values, DescribeShapes) {
  EXPECT_EQ(toString(Dims{2, 4}), "[2, 4]");
  EXPECT_EQ(toString(Dims{}), "[]");
  EXPECT_EQ(numElements({}), 1);
  EXPECT_EQ(numElements({3, 0, 5}), 0);
  EXPECT_EQ(numElements({3, 4, 5}), 60);
  EXPECT_EQ(contiguousStrides({3, 4, 5}), (Dims{20, 5, 1}));
  EXPECT_EQ(contiguousStrides({3, 0, 5}), (Dims{5, 5, 1}));
  EXPECT_EQ(contiguousStrides({}), Dims{});
  const std::vector<std::int64_t> extents(17, 1);
  EXPECT_EQ(Dims(std::span(extents).first(16)), Dims::filled(16, 1));
  EXPECT_THROW(static_cast<void>(Dims{std::span(extents)}), std::length_error);
}

TEST(Values, SaturateDeadlines) {
  EXPECT_EQ(deadlineAfter(Duration(-1)), kNoDeadline);
  EXPECT_EQ(deadlineAfter(Duration::max()), kNoDeadline);
  const Deadline before = Clock::now();
  const Deadline deadline = deadlineAfter(std::chrono::seconds(5));
  EXPECT_GE(deadline, before + std::chrono::seconds(5));
  EXPECT_LE(deadline, Clock::now() + std::chrono::seconds(5));
}

TEST(Values, NameEveryStatusCode) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumStatusCodes; ++i) {
    EXPECT_TRUE(names.insert(statusCodeName(static_cast<StatusCode>(i))).second);
  }
  EXPECT_EQ(names.count(""), 0U);
}

TEST(Values, ChecksThrowNamingThePlace) {
  const int one = 1;
  EXPECT_NO_THROW(SW_CHECK(one == 1));
  try {
    SW_CHECK(one == 2);
    FAIL() << "SW_CHECK let a false condition pass";
  } catch (const std::logic_error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("one == 2"), std::string::npos) << text;
    EXPECT_NE(text.find("values_test.cc:"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace shardwire
