// Merging the specs of all ranks. First specs that fit, with dtypes, derived shapes and empty boxes; then each wrong
// spec with its error text, also after the exchange; then overlaps among many boxes; at last the fingerprint, which
// depends on every field.
#include "ops/plan/global_spec.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "tests/support/random_spec.h"

namespace shardwire::internal {
namespace {

LocalTensor plainBox(const Dims& offset, const Dims& shape) {
  return {0, shape, {{{offset, shape}, Dims::filled(shape.size(), 0)}}, 0};
}

// Two ranks, tensor 'w' of [8, 8] whose halves are inputs and outputs: nothing wrong.
std::vector<LocalSpec> goodSpecs() {
  std::vector<LocalSpec> specs(2);
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    LocalSpec& spec = specs[static_cast<std::size_t>(rank)];
    spec.name = "step";
    spec.tensors.push_back({"w", Dims{8, 8}, DType::kFloat32, ReduceOp::kNone});
    spec.inputs = {plainBox({4 * rank, 0}, {4, 4}), plainBox({4 * rank, 4}, {4, 4})};
    spec.outputs = {plainBox({0, 4 * rank}, {8, 4})};
  }
  return specs;
}

TEST(MergeSpecs, AcceptsWhatFits) {
  const Result<GlobalSpec> merged = mergeSpecs(goodSpecs());
  ASSERT_TRUE(merged.isOk()) << merged.status().message();
  EXPECT_EQ(merged->name, "step");
  EXPECT_EQ(merged->tensors, (std::vector<GlobalTensor>{{"w", {8, 8}, DType::kFloat32, ReduceOp::kNone}}));
  EXPECT_EQ(merged->ranks[1].inputs, goodSpecs()[1].inputs);
}

TEST(MergeSpecs, LetsEachSideHaveItsDtype) {
  const auto merge = [](std::optional<DType> from0, std::optional<DType> to0, std::optional<DType> from1,
                        std::optional<DType> to1) {
    std::vector<LocalSpec> specs = goodSpecs();
    specs[0].tensors[0].dtype = from0;
    specs[0].tensors[0].outputDtype = to0;
    specs[1].tensors[0].dtype = from1;
    specs[1].tensors[0].outputDtype = to1;
    return mergeSpecs(specs);
  };
  constexpr DType kWide = DType::kFloat32;
  constexpr DType kNarrow = DType::kBFloat16;
  const auto cast = merge(kWide, std::nullopt, std::nullopt, kNarrow);
  ASSERT_TRUE(cast.isOk()) << cast.status().message();
  EXPECT_EQ(cast->tensors[0].dtype, kWide);
  EXPECT_EQ(cast->tensors[0].outputDtype, kNarrow);
  EXPECT_EQ(merge(std::nullopt, kNarrow, kWide, std::nullopt).value(), cast.value());
  EXPECT_EQ(merge(kWide, kNarrow, kWide, kNarrow).value(), cast.value());
  EXPECT_NE(fingerprint(cast.value()), fingerprint(mergeSpecs(goodSpecs()).value()));
  // Both sides have one dtype, in every way to write this.
  EXPECT_EQ(merge(kWide, kWide, std::nullopt, kWide).value(), mergeSpecs(goodSpecs()).value());
  EXPECT_EQ(merge(std::nullopt, kWide, std::nullopt, kWide).value(), mergeSpecs(goodSpecs()).value());

  EXPECT_EQ(merge(kWide, kNarrow, kWide, kWide).status().message(),
            "compile_op 'step': rank 0 gives tensor 'w' dtype bfloat16 for outputs, rank 1 gives it float32: give the "
            "same output_dtype on "
            "all ranks");
  EXPECT_EQ(merge(kWide, kNarrow, std::nullopt, std::nullopt).status().message(),
            "compile_op 'step': rank 1 declares tensor 'w' without a dtype: give that of the inputs, that of the "
            "outputs, or both");
  const Status refused = merge(DType::kInt64, std::nullopt, std::nullopt, kNarrow).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_EQ(refused.message(),
            "compile_op 'step': rank 0 gives tensor 'w' dtype int64 for inputs, rank 1 gives it bfloat16 for outputs: "
            "elements are cast "
            "between floating types, or between complex ones; for others give both sides the same dtype, and convert "
            "the tensors with "
            ".to() before or after");
}

TEST(MergeSpecs, NumbersTensorsByFirstMention) {
  std::vector<LocalSpec> specs(2);
  specs[0].tensors = {{"b", Dims{4}}, {"a", std::nullopt}};
  specs[1].tensors = {{"c", Dims{}}, {"a", Dims{2, 2}}, {"b", std::nullopt}};
  specs[1].inputs = {plainBox({1, 1}, {1, 1})};
  specs[1].inputs[0].tensor = 1;
  specs[1].outputs = {plainBox({0}, {4})};
  specs[1].outputs[0].tensor = 2;
  const Result<GlobalSpec> merged = mergeSpecs(specs);
  ASSERT_TRUE(merged.isOk()) << merged.status().message();
  ASSERT_EQ(merged->tensors.size(), 3U);
  EXPECT_EQ(merged->tensors[0].name + merged->tensors[1].name + merged->tensors[2].name, "bac");
  EXPECT_EQ(merged->tensors[1].shape, (Dims{2, 2}));
  EXPECT_EQ(merged->ranks[1].inputs[0].tensor, 1);
  EXPECT_EQ(merged->ranks[1].outputs[0].tensor, 0);
}

TEST(MergeSpecs, DerivesAShapeThatNobodyGives) {
  std::vector<LocalSpec> specs = goodSpecs();
  specs[0].tensors[0].shape.reset();
  specs[1].tensors[0].shape.reset();
  specs[1].inputs.push_back({0, {0, 5}, {{{{100, 3}, {0, 5}}, {0, 0}}}, 0});  // empty: reaches nowhere
  specs[0].outputs.push_back(plainBox({2, 6}, {1, 5}));
  EXPECT_EQ(mergeSpecs(specs)->tensors[0].shape, (Dims{8, 11}));
}

TEST(MergeSpecs, LetsEmptyBoxesLieAnywhere) {
  std::vector<LocalSpec> specs = goodSpecs();
  specs[1].inputs.push_back({0, {0, 8}, {{{{8, 0}, {0, 8}}, {0, 0}}}, 0});
  EXPECT_TRUE(mergeSpecs(specs).isOk());
}

// Each wrong spec and its exact text.
struct Wrong {
  const char* text;
  std::function<void(std::vector<LocalSpec>&)> change;
};

const std::vector<Wrong>& wrongSpecs() {
  using Specs = std::vector<LocalSpec>;
  static const std::vector<Wrong> kWrong = {
      {"rank 1: inputs must be a list",
       [](Specs& s) { s[1].localError = Status(StatusCode::kTypeError, "inputs must be a list"); }},
      {"rank 0: first (1 more rank reported an error, the next is rank 1)",
       [](Specs& s) {
         s[0].localError = Status(StatusCode::kInvalidArgument, "first");
         s[1].localError = Status(StatusCode::kTypeError, "second");
       }},
      {"rank 0 gives allow_gaps=false, rank 1 gives allow_gaps=true: give the same value on all ranks",
       [](Specs& s) { s[1].allowGaps = true; }},
      {"rank 0 gives overlap='last', rank 1 gives overlap='error': give the same value on all ranks",
       [](Specs& s) { s[1].overlap = Overlap::kError; }},
      {"rank 1 declares tensor 'w' twice: give every tensor of an op its own name",
       [](Specs& s) { s[1].tensors.push_back(s[1].tensors[0]); }},
      {"rank 0 gives tensor 'w' dtype float32, rank 1 gives it int64: give the same dtype on all ranks, and "
       "output_dtype where the outputs "
       "have another",
       [](Specs& s) { s[1].tensors[0].dtype = DType::kInt64; }},
      {"rank 0 gives tensor 'w' reduction none, rank 1 gives it sum: give the same reduction on all ranks",
       [](Specs& s) { s[1].tensors[0].reduction = ReduceOp::kSum; }},
      {"rank 0 gives tensor 'w' shape [8, 8], rank 1 gives it [8, 9]: give the same shape on all ranks, or None",
       [](Specs& s) {
         s[1].tensors[0].shape = Dims{8, 9};
       }},
      {"rank 0 asks for reduction band of tensor 'w', but it is not defined on float32: use another reduction or dtype",
       [](Specs& s) { s[0].tensors[0].reduction = s[1].tensors[0].reduction = ReduceOp::kBand; }},
      {"rank 1 gives tensor 'w' the shape [8, -8]: extent -8 of dimension 1 is negative",
       [](Specs& s) {
         s[1].tensors[0].shape = Dims{8, -8};
       }},
      {"rank 1 declares tensor 'w' with dtype number 77 and reduction number 0, which do not exist",
       [](Specs& s) { s[1].tensors[0].dtype = static_cast<DType>(77); }},
      {"rank 1 declares tensor 'w' with dtype number 11 and reduction number 99, which do not exist",
       [](Specs& s) { s[1].tensors[0].reduction = static_cast<ReduceOp>(99); }},
      {"rank 1, inputs[1] belongs to tensor number 1, but the rank declares 1 tensors, counted from 0",
       [](Specs& s) { s[1].inputs[1].tensor = 1; }},
      {"rank 0, outputs[0] belongs to tensor number -1, but the rank declares 1 tensors, counted from 0",
       [](Specs& s) { s[0].outputs[0].tensor = -1; }},
      {"rank 1, outputs[0] has a replica class: only inputs can be replicas of one another",
       [](Specs& s) { s[1].outputs[0].replicaClass = 5; }},
      {"rank 1, inputs[0]: local shape [4] has 1 dimensions, but tensor 'w' has 2 by the shape [8, 8] that rank 0 "
       "gives: give every box of "
       "a "
       "tensor the same number of dimensions",
       [](Specs& s) { s[1].inputs[0].localShape = Dims{4}; }},
      {"rank 1, inputs[0]: offset [4] has 1 dimensions, but tensor 'w' has 2 by the shape [8, 8] that rank 0 gives: "
       "give every box of a "
       "tensor the same number of dimensions",
       [](Specs& s) { s[1].inputs[0].slices[0].slice.offset = Dims{4}; }},
      {"rank 1, inputs[0]: box shape [4, 4, 1] has 3 dimensions, but tensor 'w' has 2 by the shape [8, 8] that rank 0 "
       "gives: give every "
       "box "
       "of a tensor the same number of dimensions",
       [](Specs& s) {
         s[1].inputs[0].slices[0].slice.shape = Dims{4, 4, 1};
       }},
      {"rank 1, inputs[0]: local offset [] has 0 dimensions, but tensor 'w' has 2 by the shape [8, 8] that rank 0 "
       "gives: give every box of "
       "a "
       "tensor the same number of dimensions",
       [](Specs& s) { s[1].inputs[0].slices[0].localOffset = Dims{}; }},
      {"rank 1, outputs[0]: local shape [8] has 1 dimensions, but tensor 'w' has 2 by rank 0's inputs[0]: give every "
       "box of a tensor the "
       "same "
       "number of dimensions",
       [](Specs& s) {
         s[0].tensors[0].shape.reset();
         s[1].tensors[0].shape.reset();
         s[1].outputs[0] = plainBox({0}, {8});
       }},
      {"rank 1, inputs[1]: local shape [4, -4] has a negative extent in dimension 1",
       [](Specs& s) {
         s[1].inputs[1].localShape = Dims{4, -4};
       }},
      {"rank 1, inputs[1]: a local tensor of shape [4611686018427387904, 4] has more than 2^63 bytes: no machine has "
       "so much memory, check the "
       "extents",
       [](Specs& s) {
         s[1].inputs[1].localShape = Dims{std::int64_t{1} << 62, 4};
       }},
      {"rank 1, inputs[1]: box shape [4, -1] has a negative extent in dimension 1: use 0 for a box without elements",
       [](Specs& s) {
         s[1].inputs[1].slices[0].slice.shape = Dims{4, -1};
       }},
      {"rank 1, inputs[1]: offset 9223372036854775800 plus extent 100 in dimension 0 is larger than 2^63: coordinates "
       "have 64 bits",
       [](Specs& s) {
         s[1].inputs[1] = plainBox({INT64_MAX - 7, 0}, {100, 1});
       }},
      {"rank 1, inputs[1]: offset [-1, 4] is negative in dimension 0: boxes start at 0 or later",
       [](Specs& s) {
         s[1].inputs[1].slices[0].slice.offset = Dims{-1, 4};
       }},
      {"rank 1, inputs[1]: box [6:10, 4:8] reaches outside tensor 'w' of shape [8, 8] in dimension 0: move or shrink "
       "the box, or give a "
       "larger "
       "shape",
       [](Specs& s) {
         s[1].inputs[1].slices[0].slice.offset = Dims{6, 4};
       }},
      {"rank 1, inputs[1]: local offset [0, -2] is negative in dimension 1: a box lies inside its local tensor",
       [](Specs& s) {
         s[1].inputs[1].slices[0].localOffset = Dims{0, -2};
       }},
      {"rank 1, inputs[1]: box [4:8, 4:8] at local offset [1, 0] reaches outside its local tensor of shape [4, 4] in "
       "dimension 0: the "
       "local "
       "tensor must hold the whole box",
       [](Specs& s) {
         s[1].inputs[1].slices[0].localOffset = Dims{1, 0};
       }},
      {"rank 0, inputs[0]: its boxes 0 ([0:2, 0:4]) and 2 ([1:3, 0:4]) overlap: the boxes of one local tensor must be "
       "disjoint, give "
       "overlapping boxes as separate inputs",
       [](Specs& s) {
         s[0].inputs[0] = {
             0, {8, 4}, {{{{0, 0}, {2, 4}}, {0, 0}}, {{{4, 0}, {2, 4}}, {2, 0}}, {{{1, 0}, {2, 4}}, {4, 0}}}, 0};
       }},
      {"rank 1, outputs[0]: its boxes 0 ([0:2, 0:4]) and 1 ([1:3, 0:4]) overlap: the boxes of one local tensor must be "
       "disjoint, give "
       "overlapping boxes as separate outputs",
       [](Specs& s) {
         s[1].outputs[0] = {0, {8, 4}, {{{{0, 0}, {2, 4}}, {0, 0}}, {{{1, 0}, {2, 4}}, {2, 0}}}, 0};
       }},
      {"rank 1, outputs[0]: its boxes 0 and 1 lie on the same elements of the local tensor (local offsets [0, 0] and "
       "[1, 0]): give each "
       "its own "
       "place",
       [](Specs& s) {
         s[1].outputs[0] = {0, {8, 4}, {{{{0, 0}, {2, 4}}, {0, 0}}, {{{2, 0}, {2, 4}}, {1, 0}}}, 0};
       }},
      {"rank 1, outputs[0] box 1: box [2:12, 0:4] reaches outside tensor 'w' of shape [8, 8] in dimension 0: move or "
       "shrink the box, or "
       "give a "
       "larger shape",
       [](Specs& s) {
         s[1].outputs[0] = {0, {12, 4}, {{{{0, 0}, {2, 4}}, {0, 0}}, {{{2, 0}, {10, 4}}, {2, 0}}}, 0};
       }},
  };
  return kWrong;
}

TEST(MergeSpecs, RefusesEachWrongSpecWithItsText) {
  for (const Wrong& wrong : wrongSpecs()) {
    std::vector<LocalSpec> specs = goodSpecs();
    wrong.change(specs);
    const Result<GlobalSpec> merged = mergeSpecs(specs);
    ASSERT_FALSE(merged.isOk()) << wrong.text;
    EXPECT_EQ(merged.status().message(), std::string("compile_op 'step': ") + wrong.text);
  }
  EXPECT_GE(wrongSpecs().size(), 20U);
}

TEST(MergeSpecs, KeepsTheKindOfALocalError) {
  std::vector<LocalSpec> specs = goodSpecs();
  specs[1].localError = Status(StatusCode::kTypeError, "x");
  EXPECT_EQ(mergeSpecs(specs).status().code(), StatusCode::kTypeError);
  specs = goodSpecs();
  specs[1].allowGaps = true;
  EXPECT_EQ(mergeSpecs(specs).status().code(), StatusCode::kInvalidArgument);
}

// A rank gets specs that other ranks encoded: a wrong spec must arrive unchanged.
TEST(MergeSpecs, SaysTheSameAfterTheExchange) {
  for (const Wrong& wrong : wrongSpecs()) {
    std::vector<LocalSpec> specs = goodSpecs();
    wrong.change(specs);
    if (specs[1].tensors[0].dtype == static_cast<DType>(77) ||
        specs[1].tensors[0].reduction == static_cast<ReduceOp>(99)) {
      EXPECT_FALSE(decodeSpec(encodeSpec(specs[1])).isOk());
      continue;
    }
    std::vector<LocalSpec> exchanged;
    for (const LocalSpec& spec : specs) {
      Result<LocalSpec> decoded = decodeSpec(encodeSpec(spec));
      ASSERT_TRUE(decoded.isOk()) << wrong.text;
      exchanged.push_back(std::move(decoded).value());
    }
    EXPECT_EQ(mergeSpecs(exchanged).status(), mergeSpecs(specs).status()) << wrong.text;
  }
}

TEST(MergeSpecs, RefusesAnEmptyGroupAndNamesNoTensorWithoutAName) {
  EXPECT_EQ(mergeSpecs({}).status().code(), StatusCode::kInvalidArgument);
  std::vector<LocalSpec> specs = goodSpecs();
  for (LocalSpec& spec : specs) {
    spec.name.clear();
    spec.tensors[0].name.clear();
  }
  specs[1].tensors[0].dtype = DType::kBool;
  EXPECT_EQ(mergeSpecs(specs).status().message(),
            "compile_op: rank 0 gives the tensor dtype float32, rank 1 gives it bool: give the same dtype on all "
            "ranks, and output_dtype "
            "where the outputs have another");
}

TEST(MergeSpecs, FindsOverlapsAmongManyBoxes) {
  std::vector<LocalSpec> specs(1);
  specs[0].tensors = {{"", std::nullopt}};
  LocalTensor local{0, {4096, 2}, {}, 0};
  for (std::int64_t i = 0; i < 2048; ++i) {
    local.slices.push_back({{{i * 2, i % 7}, {2, 1}}, {i * 2, 0}});
  }
  specs[0].inputs = {local};
  EXPECT_TRUE(mergeSpecs(specs).isOk());
  specs[0].inputs[0].slices[1000].slice = {{1, 0}, {1, 1}};
  const std::string text = mergeSpecs(specs).status().message();
  EXPECT_NE(text.find("boxes 0 ([0:2, 0:1]) and 1000 ([1:2, 0:1]) overlap"), std::string::npos) << text;
}

TEST(Fingerprint, DependsOnEveryField) {
  const GlobalSpec base = mergeSpecs(goodSpecs()).value();
  std::vector<GlobalSpec> others(13, base);
  others[0].name = "other";
  others[1].allowGaps = true;
  others[2].tensors[0].name = "v";
  others[3].tensors[0].shape[0] = 9;
  others[4].tensors[0].dtype = DType::kInt32;
  others[5].tensors[0].reduction = ReduceOp::kSum;
  others[6].ranks[1].inputs[0].replicaClass = 1;
  others[7].ranks[1].inputs[0].localShape[0] = 5;
  others[8].ranks[1].inputs[0].slices[0].slice.offset[0] = 3;
  others[9].ranks[1].inputs[0].slices[0].slice.shape[0] = 3;
  others[10].ranks[1].outputs[0].slices[0].localOffset[1] = 1;
  others[11].ranks[1].outputs.swap(others[11].ranks[1].inputs);
  others[12].overlap = Overlap::kAny;
  std::set<std::uint64_t> seen{fingerprint(base)};
  for (const GlobalSpec& other : others) {
    EXPECT_TRUE(seen.insert(fingerprint(other)).second);
  }
  EXPECT_EQ(fingerprint(base), fingerprint(mergeSpecs(goodSpecs()).value()));
}

}  // namespace
}  // namespace shardwire::internal
