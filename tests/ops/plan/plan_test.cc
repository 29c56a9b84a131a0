// Plans and their codec. First a valid sample, then each broken invariant, the dump for people, and the memory count.
// Then serialised plans: the round trip, the exact bytes, other versions, truncation, and random damage.
#include "ops/plan/plan.h"

#include <gtest/gtest.h>

#include <functional>

#include "ops/plan/redistribute.h"
#include "tests/support/dump_plan.h"
#include "tests/support/hex.h"
#include "tests/support/random.h"
#include "tests/support/random_spec.h"

namespace shardwire::internal {
namespace {

using namespace shardwire::testing;

std::vector<Plan> randomPlans(std::uint64_t seed) {
  const std::vector<LocalSpec> specs = makeRandomCase(seed).specs;
  const GlobalSpec spec = mergeSpecs(specs).value();
  std::vector<Plan> plans;
  for (std::size_t rank = 0; rank < specs.size(); ++rank) {
    plans.push_back(redistribute(spec, static_cast<Rank>(rank)).value());
  }
  return plans;
}

// Rank 1 of 3: one own copy, one copy from rank 2, one sum of ranks 0, 1 and 2; rank 1 sends two boxes to rank 0,
// combined there.
Plan samplePlan() {
  Plan plan;
  plan.rank = 1;
  plan.worldSize = 3;
  plan.fingerprint = 0x1122334455667788;
  plan.inputs = {{DType::kFloat32, {4, 4}}, {DType::kFloat32, {2}}};
  plan.outputs = {{DType::kFloat32, {6, 4}}, {DType::kFloat32, {2}}};
  plan.sources = {{1, 0, 0, {0, 0}}, {2, 3, 0, {5, 0}}, {0, 0, 0, {1}}, {1, 1, 1, {0}}, {2, 4, 1, {7}}};
  plan.moves = {{0, {0, 0}, {4, 4}, 0, 1, ReduceOp::kNone},
                {0, {4, 0}, {2, 4}, 1, 1, ReduceOp::kNone},
                {1, {0}, {2}, 2, 3, ReduceOp::kSum}};
  plan.numOwnCopies = 1;
  plan.firstCombine = 2;
  plan.receives = {{2, 1, 1, 1, 40, 2, {3, 4}}, {0, 2, 0, 0, 8, 1, {0}}};
  plan.sendItems = {{0, 0, {1, 1}, {1, 2}, false}, {0, 0, {3, 1}, {1, 2}, true}};
  plan.sends = {{0, 0, 2, 0, 16, 2, {0}}};
  return plan;
}

TEST(Plan, SampleIsValid) {
  EXPECT_EQ(validate(samplePlan()).message(), "");
}

TEST(Plan, NamesTheFirstBrokenInvariant) {
  struct Case {
    const char* text;
    std::function<void(Plan&)> change;
  };
  const std::vector<Case> cases = {
      {"rank 3 does not fit a world of 3", [](Plan& p) { p.rank = 3; }},
      {"rank 1 does not fit a world of 0", [](Plan& p) { p.worldSize = 0; }},
      {"inputs[0] has unknown dtype 90", [](Plan& p) { p.inputs[0].dtype = static_cast<DType>(90); }},
      {"outputs[1] has shape [-2]", [](Plan& p) { p.outputs[1].shape = {-2}; }},
      {"inputs[1] of shape [4611686018427387904] has more than 2^63 bytes",
       [](Plan& p) { p.inputs[1].shape = {std::int64_t{1} << 62}; }},
      {"3 own copies and first combine 2 do not fit 3 moves", [](Plan& p) { p.numOwnCopies = 3; }},
      {"do not fit 3 moves", [](Plan& p) { p.firstCombine = 4; }},
      {"receives[1] has peer 2", [](Plan& p) { p.receives[1].peer = 2; }},
      {"receives[1] has peer 2: peers are other ranks, by distance",
       [](Plan& p) {
         p.receives[0].peer = 0;
         p.receives[1].peer = 2;
       }},
      {"receives[0] has peer 1", [](Plan& p) { p.receives[0].peer = 1; }},
      {"sends[0] has peer 3", [](Plan& p) { p.sends[0].peer = 3; }},
      {"receives[0] begins at 0, the one before it ends at 1", [](Plan& p) { p.receives[0].first = 0; }},
      {"sends end at 1 instead of 2", [](Plan& p) { p.sends[0].count = 1; }},
      {"sends[0] copies 3 of 2 items", [](Plan& p) { p.sends[0].numCopies = 3; }},
      {"receives[0] says 0 copies, and has 1", [](Plan& p) { p.receives[0].numCopies = 0; }},
      {"receives[0]: the inputs used are not ascending",
       [](Plan& p) {
         p.receives[0].inputs = {4, 3};
       }},
      {"sends[0]: the inputs used are not ascending or there are none", [](Plan& p) { p.sends[0].inputs.clear(); }},
      {"moves[1] writes output 2 of 2", [](Plan& p) { p.moves[1].output = 2; }},
      {"moves[1] writes [3, 4] at [4, 0] of outputs[0]",
       [](Plan& p) {
         p.moves[1].shape = {3, 4};
       }},
      {"moves[1] writes [0, 4]",
       [](Plan& p) {
         p.moves[1].shape = {0, 4};
       }},
      {"moves[1] writes [2, 4] at [-1, 0]",
       [](Plan& p) {
         p.moves[1].offset = {-1, 0};
       }},
      {"moves[1] writes [2] at [4]",
       [](Plan& p) {
         p.moves[1].offset = {4};
         p.moves[1].shape = {2};
       }},
      {"moves[1] writes outputs[0] for a second time",
       [](Plan& p) {
         p.moves[1].offset = {0, 0};
         p.moves[1].shape = {6, 4};
       }},
      {"moves[1] is a copy of 2 sources", [](Plan& p) { p.moves[1].numSources = 2; }},
      {"moves[2] is a combine of 1 sources", [](Plan& p) { p.moves[2].numSources = 1; }},
      {"moves[0] casts float32 to int64", [](Plan& p) { p.outputs[0].dtype = DType::kInt64; }},
      {"moves[0] reads unknown dtype 90", [](Plan& p) { p.moves[0].sourceDtype = static_cast<DType>(90); }},
      {"sources[0] reads [4, 4] at [0, 0] of inputs[0], float32",
       [](Plan& p) { p.moves[0].sourceDtype = DType::kFloat64; }},
      {"receives[0] says 40 bytes in 2 items, its moves need 24 in 2",
       [](Plan& p) { p.outputs[0].dtype = DType::kBFloat16; }},
      {"sendItems[0] sends float32 as dtype 2", [](Plan& p) { p.sendItems[0].stagedDtype = DType::kInt8; }},
      {"sendItems[0] sends float32 as dtype 12", [](Plan& p) { p.sendItems[0].stagedDtype = DType::kFloat64; }},
      {"sends[0] says 16 bytes in 2 items, its items have 12 in 2",
       [](Plan& p) {
         p.sendItems[1].stagedDtype = DType::kFloat16;
         p.sendItems[1].withPrevious = false;
       }},
      {"sendItems[1] goes with the item before it, which is of another shape, dtype or edge",
       [](Plan& p) {
         p.sendItems[0].stagedDtype = DType::kFloat16;
         p.sends[0].bytes = 12;
       }},
      {"moves[2] has 3 sources from 3, 3 are left from 2", [](Plan& p) { p.moves[2].firstSource = 3; }},
      {"moves[2] has 3 sources from 4294967295", [](Plan& p) { p.moves[2].firstSource = UINT32_MAX; }},
      {"moves[1] has 1 sources from 0, 4 are left from 1", [](Plan& p) { p.moves[1].firstSource = 0; }},
      {"1 of 6 sources belong to no move", [](Plan& p) { p.sources.push_back(p.sources[0]); }},
      {"moves[2] with 3 sources of float32 has reduction 0", [](Plan& p) { p.moves[2].reduction = ReduceOp::kNone; }},
      {"moves[0] with 1 sources of float32 has reduction 1", [](Plan& p) { p.moves[0].reduction = ReduceOp::kSum; }},
      {"moves[2] with 3 sources of float32 has reduction 6", [](Plan& p) { p.moves[2].reduction = ReduceOp::kBand; }},
      {"moves[1] copies from rank 1 among the copies from rank 2", [](Plan& p) { p.sources[1].rank = 1; }},
      {"sources[3] is own input 1 in slot 0 of 2", [](Plan& p) { p.sources[3].slot = 0; }},
      {"sources[3] is own input 2 in slot 2 of 2", [](Plan& p) { p.sources[3].input = p.sources[3].slot = 2; }},
      {"sources[3] reads [2] at [1] of inputs[1]", [](Plan& p) { p.sources[3].offset = {1}; }},
      {"sources[0] reads [4, 4] at [0, 0] of inputs[0], int32", [](Plan& p) { p.inputs[0].dtype = DType::kInt32; }},
      {"sources[2] is on rank 9, from which nothing is received", [](Plan& p) { p.sources[2].rank = 9; }},
      {"sources[4] is input 3 of rank 2, which is not in slot 1", [](Plan& p) { p.sources[4].input = 3; }},
      {"sources[4] is input 4 of rank 2, which is not in slot 2", [](Plan& p) { p.sources[4].slot = 2; }},
      {"sources[4] reads slot 0 of rank 2 as a tensor of 1 dimensions of float32",
       [](Plan& p) {
         p.sources[4].input = 3;
         p.sources[4].slot = 0;
       }},
      {"sources[4] begins at [-1]", [](Plan& p) { p.sources[4].offset = {-1}; }},
      {"sources[4] begins at [9223372036854775807]", [](Plan& p) { p.sources[4].offset = {INT64_MAX}; }},
      {"sources[4] begins at [1, 1]",
       [](Plan& p) {
         p.sources[4].offset = {1, 1};
       }},
      {"receives[0] says 41 bytes in 2 items, its moves need 40 in 2", [](Plan& p) { p.receives[0].bytes = 41; }},
      {"receives[1] says 8 bytes in 3 items, its moves need 8 in 1", [](Plan& p) { p.receives[1].numItems = 3; }},
      {"receives[0] names an input that no move uses",
       [](Plan& p) {
         p.receives[0].inputs = {3, 4, 5};
       }},
      {"sendItems[1] is input 1 of 2, which is not in slot 0", [](Plan& p) { p.sendItems[1].input = 1; }},
      {"sendItems[1] reads [1, 2] at [4, 1] of inputs[0]",
       [](Plan& p) {
         p.sendItems[1].offset = {4, 1};
       }},
      {"sendItems[0] goes with the item before it", [](Plan& p) { p.sendItems[0].withPrevious = true; }},
      {"sendItems[1] goes with the item before it",
       [](Plan& p) {
         p.sendItems[1].shape = {1, 1};
       }},
      {"sends[0] says 15 bytes in 2 items, its items have 16 in 2", [](Plan& p) { p.sends[0].bytes = 15; }},
      {"sends[0] names an input that no item uses",
       [](Plan& p) {
         p.sends[0].inputs = {0, 1};
       }},
  };
  for (const Case& wrong : cases) {
    Plan plan = samplePlan();
    wrong.change(plan);
    const Status status = validate(plan);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << wrong.text;
    EXPECT_NE(status.message().find(wrong.text), std::string::npos) << status.message() << "\nexpected: " << wrong.text;
    EXPECT_EQ(deserialise(serialise(plan)).status().code(), StatusCode::kInvalidArgument) << wrong.text;
  }
}

TEST(Plan, DumpsForPeople) {
  EXPECT_EQ(
      dump(samplePlan()),
      "plan of rank 1 of 3, fingerprint 1122334455667788\n"
      "  inputs[0]: float32 [4, 4]\n"
      "  inputs[1]: float32 [2]\n"
      "  outputs[0]: float32 [6, 4]\n"
      "  outputs[1]: float32 [2]\n"
      "  own copies: 1\n"
      "    outputs[0] [4, 4] at [0, 0] = rank 1 inputs[0] at [0, 0]\n"
      "  from rank 2: 40 bytes in 2 boxes of its inputs [3, 4], 1 copies\n"
      "    outputs[0] [2, 4] at [4, 0] = rank 2 inputs[3] at [5, 0]\n"
      "  from rank 0: 8 bytes in 1 boxes of its inputs [0], 0 copies\n"
      "  combines: 1\n"
      "    outputs[1] [2] at [0] = sum of rank 0 inputs[0] at [1], rank 1 inputs[1] at [0], rank 2 inputs[4] at [7]\n"
      "  to rank 0: 16 bytes in 2 boxes of my inputs [0]\n"
      "    inputs[0] [1, 2] at [1, 1]\n"
      "    inputs[0] [1, 2] at [3, 1] with the one before\n");
}

TEST(Plan, DumpsCasts) {
  Plan plan = samplePlan();
  plan.outputs[0].dtype = DType::kBFloat16;
  plan.receives[0].bytes = 24;  // one box of eight in the narrower type, and one of two that is combined
  EXPECT_EQ(validate(plan).message(), "");
  EXPECT_NE(dump(plan).find("outputs[0] [2, 4] at [4, 0] = rank 2 inputs[3] at [5, 0], cast from float32\n"),
            std::string::npos);
  EXPECT_EQ(deserialise(serialise(plan)).value(), plan);
}

TEST(Plan, CountsItsMemory) {
  EXPECT_GT(memoryBytes(samplePlan()), 5 * sizeof(PlanSource) + 3 * sizeof(PlanMove));
  Plan larger = samplePlan();
  larger.sources.resize(1000);
  EXPECT_GT(memoryBytes(larger), memoryBytes(samplePlan()) + 900 * sizeof(PlanSource));
}

TEST(PlanCodec, ReturnsWhatWasSerialised) {
  EXPECT_EQ(deserialise(serialise(samplePlan())).value(), samplePlan());
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    for (const Plan& plan : randomPlans(seed)) {
      const Result<Plan> read = deserialise(serialise(plan));
      ASSERT_TRUE(read.isOk()) << seed << ": " << read.status().message();
      EXPECT_EQ(read.value(), plan);
    }
  }
}

TEST(PlanCodec, KeepsItsBytes) {
  Plan plan;
  plan.rank = 1;
  plan.worldSize = 2;
  plan.fingerprint = 0x0102030405060708;
  plan.inputs = {{DType::kInt16, {3}}};
  plan.outputs = {{DType::kInt16, {2}}};
  plan.sources = {{0, 5, 0, {7}}};
  plan.moves = {{0, {0}, {2}, 0, 1, ReduceOp::kNone, DType::kInt16}};
  plan.firstCombine = 1;
  plan.receives = {{0, 0, 1, 1, 4, 1, {5}}};
  plan.sendItems = {{0, 0, {1}, {2}, false, DType::kInt16}};
  plan.sends = {{0, 0, 1, 1, 4, 1, {0}}};
  EXPECT_EQ(validate(plan).message(), "");
  EXPECT_EQ(toHex(serialise(plan)),
            "5357504c"
            "03"
            "01000000"
            "02000000"
            "0807060504030201"
            "00000000"
            "01000000"
            "01000000"
            "03"
            "010300000000000000"
            "01000000"
            "03"
            "010200000000000000"
            "01000000"
            "00000000"
            "05000000"
            "00000000"
            "010700000000000000"
            "01000000"
            "00000000"
            "010000000000000000"
            "010200000000000000"
            "00000000"
            "01000000"
            "00"
            "03"
            "01000000"
            "00000000"
            "00000000"
            "01000000"
            "01000000"
            "0400000000000000"
            "0100000000000000"
            "01000000"
            "05000000"
            "01000000"
            "00000000"
            "00000000"
            "010100000000000000"
            "010200000000000000"
            "00"
            "03"
            "01000000"
            "00000000"
            "00000000"
            "01000000"
            "01000000"
            "0400000000000000"
            "0100000000000000"
            "01000000"
            "00000000");
}

TEST(PlanCodec, RefusesOtherBytesAndVersions) {
  EXPECT_NE(deserialise("hello, world").status().message().find("not a shardwire plan"), std::string::npos);
  EXPECT_FALSE(deserialise("").isOk());
  std::string bytes = serialise(samplePlan());
  bytes[4] = 2;
  EXPECT_NE(deserialise(bytes).status().message().find("format version 2"), std::string::npos);
}

TEST(PlanCodec, RefusesEveryTruncationAndTrailingBytes) {
  const std::string bytes = serialise(samplePlan());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_EQ(deserialise(std::string_view(bytes).substr(0, length)).status().code(), StatusCode::kInvalidArgument)
        << length;
  }
  EXPECT_FALSE(deserialise(bytes + '\0').isOk());
}

// Never a crash (this test runs under the sanitizers too); an accepted plan keeps every rule.
TEST(PlanCodec, SurvivesDamage) {
  Random random(12);
  std::vector<std::string> originals;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    for (const Plan& plan : randomPlans(seed)) {
      originals.push_back(serialise(plan));
    }
  }
  std::size_t numAccepted = 0;
  for (int i = 0; i < 30000; ++i) {
    std::string bytes = originals[static_cast<std::size_t>(i) % originals.size()];
    for (std::int64_t flips = random.between(1, 3); flips > 0; --flips) {
      bytes[static_cast<std::size_t>(random.between(5, std::ssize(bytes) - 1))] = static_cast<char>(random.bits());
    }
    if (random.chance(10)) {
      bytes.resize(static_cast<std::size_t>(random.between(0, std::ssize(bytes))));
    }
    if (const Result<Plan> plan = deserialise(bytes); plan.isOk()) {
      ++numAccepted;
      EXPECT_TRUE(validate(plan.value()).isOk());
      EXPECT_EQ(serialise(plan.value()), bytes);
    }
  }
  EXPECT_GT(numAccepted, 100U);
}

}  // namespace
}  // namespace shardwire::internal
