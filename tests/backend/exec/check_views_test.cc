// Inputs and outputs of one run that share memory: refused where an element would be overwritten before the read.
#include "backend/exec/check_views.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "ops/plan/redistribute.h"

namespace shardwire::internal {
namespace {

using Values = std::vector<std::int64_t>;

// Of rank 0, over one int64 tensor.
Plan planOf(const Dims& shape, const std::vector<std::pair<Slice, Slice>>& partsOfRanks) {
  std::vector<LocalSpec> specs;
  for (const auto& [in, out] : partsOfRanks) {
    LocalSpec spec;
    spec.tensors = {{"", shape, DType::kInt64, ReduceOp::kNone}};
    spec.inputs = {{0, in.shape, {{in, Dims::filled(shape.size(), 0)}}}};
    spec.outputs = {{0, out.shape, {{out, Dims::filled(shape.size(), 0)}}}};
    specs.push_back(spec);
  }
  return redistribute(mergeSpecs(specs).value(), 0).value();
}

TensorView viewOf(Values& values, std::size_t first, const Dims& shape, const Dims& strides) {
  return {reinterpret_cast<std::byte*>(values.data() + first), DType::kInt64, shape, strides};
}

std::string whyNot(const Plan& plan, const TensorView& input, const TensorView& output) {
  return checkAliasing(plan, std::span(&input, 1), std::span(&output, 1), "op").message();
}

// A rank has a square and wants the square of the other rank.
Plan swapPlan() {
  const Slice upper{{0, 0}, {4, 4}};
  const Slice lower{{4, 0}, {4, 4}};
  return planOf({8, 4}, {{upper, lower}, {lower, upper}});
}

TEST(CheckViews, AllowsWhatLiesBetweenTheElementsOfAnInput) {
  Values values(32);
  const Plan plan = swapPlan();
  const TensorView left = viewOf(values, 0, {4, 4}, {8, 1});
  const TensorView right = viewOf(values, 4, {4, 4}, {8, 1});
  EXPECT_EQ(whyNot(plan, left, right), "");
  EXPECT_EQ(whyNot(plan, right, left), "");
  EXPECT_EQ(whyNot(plan, viewOf(values, 0, {4, 4}, {8, 2}), viewOf(values, 1, {4, 4}, {8, 2})), "");
  EXPECT_NE(
      whyNot(plan, left, viewOf(values, 3, {4, 4}, {8, 1})).find("inputs[0] and outputs[0] of rank 0 share memory"),
      std::string::npos);
  EXPECT_NE(whyNot(plan, left, left), "");
}

// The output is the whole; the input is the own part of the whole, at its place, by rows and by columns.
TEST(CheckViews, AllowsAnInputInItsOwnPlace) {
  for (const bool byRows : {true, false}) {
    const auto part = [&](std::int64_t rank) {
      return byRows ? Slice{{2 * rank, 0}, {2, 8}} : Slice{{0, 2 * rank}, {8, 2}};
    };
    const Slice all{{0, 0}, {8, 8}};
    const Plan plan = planOf({8, 8}, {{part(0), all}, {part(1), all}, {part(2), all}, {part(3), all}});
    Values values(64);
    const TensorView whole = viewOf(values, 0, {8, 8}, {8, 1});
    EXPECT_EQ(whyNot(plan, viewOf(values, 0, part(0).shape, {8, 1}), whole), "") << byRows;
    EXPECT_NE(whyNot(plan, viewOf(values, byRows ? 8 : 1, part(0).shape, {8, 1}), whole), "") << byRows;
    EXPECT_NE(whyNot(plan, viewOf(values, byRows ? 16 : 2, part(0).shape, {8, 1}), whole), "") << byRows;
  }
}

// Peers read the input while the rank writes the output.
TEST(CheckViews, RefusesWhatPeersStillRead) {
  const Slice rows{{0, 0}, {4, 8}};
  const Slice columns{{0, 0}, {8, 4}};
  const Plan plan = planOf({8, 8}, {{rows, columns}, {{{4, 0}, {4, 8}}, {{0, 4}, {8, 4}}}});
  Values values(64);
  const TensorView input = viewOf(values, 0, {4, 8}, {8, 1});
  EXPECT_EQ(whyNot(plan, input, viewOf(values, 0, {8, 4}, {8, 1})), "");  // its own columns stay, others go below
  EXPECT_NE(whyNot(plan, input, viewOf(values, 4, {8, 4}, {8, 1})), "");
}

TEST(CheckViews, RefusesAnOutputThatOverlapsItself) {
  const Plan plan = swapPlan();
  Values values(32);
  const TensorView input = viewOf(values, 0, {4, 4}, {4, 1});
  const auto whyNotInto = [&](const TensorView& output) {
    return checkViews(plan, std::span(&input, 1), std::span(&output, 1), "op").message();
  };
  EXPECT_EQ(whyNotInto(viewOf(values, 16, {4, 4}, {4, 1})), "");
  EXPECT_EQ(whyNotInto(viewOf(values, 16, {4, 4}, {3, 1})),
            "op: outputs[0] of rank 0 has elements that share memory (strides [3, 1]); pass a tensor without overlap");
}

}  // namespace
}  // namespace shardwire::internal
