// Rows in the form of shipping: a Planner's rows for all ranks equal the row that each rank makes alone, and nothing
// else passes for a row.
#include "ops/plan/plan_row.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/hex.h"
#include "tests/support/random_spec.h"

namespace shardwire::internal {
namespace {

using namespace shardwire::testing;

std::uint64_t numberOf(const char* variable, std::uint64_t otherwise) {
  const char* given = std::getenv(variable);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

std::vector<std::int32_t> hostsOf(std::uint64_t seed, std::size_t numRanks) {
  std::vector<std::int32_t> hosts;
  for (std::size_t rank = 0; rank < numRanks && seed % 3 != 0; ++rank) {
    hosts.push_back(static_cast<std::int32_t>((rank + seed) / 2 % 3));
  }
  return hosts;
}

TEST(PlanRow, ARankThatPlansForAllMakesWhatEachMakesAloneByteForByte) {
  // A case plans three times and compares bytes: a fifth of the cases of tests_oracle.
  const std::uint64_t cases = std::min<std::uint64_t>(numberOf("SHARDWIRE_ORACLE_CASES", 10000) / 5, 20000);
  const std::uint64_t first = numberOf("SHARDWIRE_ORACLE_SEED", 1);
  std::printf("%llu cases from seed %llu\n", static_cast<unsigned long long>(cases),
              static_cast<unsigned long long>(first));
  for (std::uint64_t seed = first; seed < first + cases; ++seed) {
    const RandomCase randomCase = makeRandomCase(seed);
    const Result<GlobalSpec> spec = mergeSpecs(randomCase.specs);
    ASSERT_TRUE(spec.isOk()) << describe(randomCase);
    const std::vector<std::int32_t> hosts = hostsOf(seed, spec->ranks.size());
    const Result<std::unique_ptr<Planner>> planner = Planner::create(*spec, hosts);
    ASSERT_TRUE(planner.isOk()) << planner.status().message() << "\n" << describe(randomCase);
    // Not in order: the state left by one rank's plan must not affect another's.
    for (std::size_t turn = 0; turn < spec->ranks.size(); ++turn) {
      const auto rank = static_cast<Rank>((turn * 5 + seed) % spec->ranks.size());
      const PlanRow made{specOf(*spec, rank), hashOf(hosts, spec->ranks.size()), (*planner)->planOf(rank)};
      const Result<PlanRow> read = decodeRow(encodeRow(made));
      ASSERT_TRUE(read.isOk()) << "seed " << seed << ": " << read.status().message() << "\n" << describe(randomCase);
      const Result<Plan> alone = redistribute(*spec, rank, hosts);
      ASSERT_TRUE(alone.isOk());
      ASSERT_EQ(toHex(serialise(read->plan)), toHex(serialise(*alone))) << "seed " << seed << "\n"
                                                                        << describe(randomCase);
      const Status fits =
          checkRow(*read, rank, static_cast<int>(spec->ranks.size()), randomCase.specs[static_cast<std::size_t>(rank)]);
      ASSERT_TRUE(fits.isOk()) << "seed " << seed << ": " << fits.message() << "\n" << describe(randomCase);
    }
  }
}

// Rank 0 has [0, 2), rank 1 wants all of the four elements as bfloat16.
std::vector<LocalSpec> smallSpecs() {
  const auto piece = [](std::int64_t offset, std::int64_t length) {
    return LocalTensor{.localShape = {length}, .slices = {{.slice = {{offset}, {length}}, .localOffset = {0}}}};
  };
  const TensorDecl w{"w", Dims{4}, DType::kFloat32, ReduceOp::kNone, DType::kBFloat16};
  LocalSpec first{.tensors = {w}, .inputs = {piece(0, 2)}};
  LocalSpec second{.tensors = {w}, .inputs = {piece(2, 2)}, .outputs = {piece(0, 4)}};
  return {first, second};
}

PlanRow smallRow(Rank rank) {
  const GlobalSpec spec = mergeSpecs(smallSpecs()).value();
  return {specOf(spec, rank), hashOf({}, 2), redistribute(spec, rank).value()};
}

TEST(PlanRow, KeepsItsBytes) {
  const std::string bytes = encodeRow(smallRow(0));
  EXPECT_EQ(toHex(bytes),
            "53575052"          // "SWPR"
            "01"                // version
            "263b06dc6f878a6d"  // checksum
            "b6c860aec2576bbb"  // hosts
            "17"                // length of the agreed spec
            "04000000010177070b0a00010801000001040103010000" +
                toHex(serialise(smallRow(0).plan)));  // has a separate golden test
}

TEST(PlanRow, RefusesWhateverIsNotWhole) {
  const std::string whole = encodeRow(smallRow(1));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(decodeRow(std::string_view(whole).substr(0, length)).status().code(), StatusCode::kInvalidArgument)
        << length;
  }
  EXPECT_FALSE(decodeRow(whole + "x").isOk());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      EXPECT_EQ(decodeRow(changed).status().code(), StatusCode::kInvalidArgument) << at << " " << bit;
    }
  }
}

TEST(PlanRow, RefusesAPlanOfOtherTensors) {
  PlanRow row = smallRow(1);
  row.agreed.outputs[0].localShape = {5};
  EXPECT_NE(decodeRow(encodeRow(row)).status().message().find("of other tensors than the lists beside it"),
            std::string::npos);
  row = smallRow(1);
  row.agreed.tensors[0].outputDtype = DType::kFloat16;
  EXPECT_FALSE(decodeRow(encodeRow(row)).isOk());
  row = smallRow(1);
  row.agreed.tensors[0].shape.reset();
  EXPECT_FALSE(decodeRow(encodeRow(row)).isOk());
  row = smallRow(1);
  row.agreed.inputs[0].tensor = 1;
  EXPECT_FALSE(decodeRow(encodeRow(row)).isOk());
  row = smallRow(1);
  row.plan.moves[0].offset = {3};
  EXPECT_NE(decodeRow(encodeRow(row)).status().message().find("breaks its own rules"), std::string::npos);
}

TEST(PlanRow, IsOfOneRankAndOfWhatItAskedFor) {
  const std::vector<LocalSpec> specs = smallSpecs();
  EXPECT_TRUE(checkRow(smallRow(1), 1, 2, specs[1]).isOk());
  EXPECT_NE(checkRow(smallRow(0), 1, 2, specs[1]).message().find("the plan is of rank 0 of 2, not of rank 1 of 2"),
            std::string::npos);
  EXPECT_NE(checkRow(smallRow(1), 1, 3, specs[1]).message().find("not of rank 1 of 3"), std::string::npos);
  LocalSpec other = specs[1];
  other.inputs[0].slices[0].slice.offset = {1};
  EXPECT_NE(checkRow(smallRow(1), 1, 2, other).message().find("of other boxes than this rank gave"), std::string::npos);
  other = specs[1];
  other.outputs.clear();
  EXPECT_FALSE(checkRow(smallRow(1), 1, 2, other).isOk());
}

}  // namespace
}  // namespace shardwire::internal
