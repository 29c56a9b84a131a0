// Planning of a redistribution. First random cases against the naive model, and the determinism of plans. Then sources:
// which input wins, merged cells, replicas, near hosts, shared load. Then error texts for gaps and overlaps, equal on
// every rank. At last traffic counts and many irregular boxes.
#include "ops/plan/redistribute.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "ops/plan/sharding.h"
#include "tests/support/dump_plan.h"
#include "tests/support/naive_model.h"
#include "tests/support/random_spec.h"
#include "tests/support/run_plans.h"

namespace shardwire::internal {
namespace {

using namespace shardwire::testing;

std::uint64_t numOracleCases(std::uint64_t usual) {
  const char* wanted = std::getenv("SHARDWIRE_ORACLE_CASES");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : usual;
}

LocalTensor boxTensor(const Dims& offset, const Dims& shape, std::uint64_t replicaClass = 0) {
  return {0, shape, {{{offset, shape}, Dims::filled(shape.size(), 0)}}, replicaClass};
}

std::vector<LocalSpec> specsOf(int numRanks, DType dtype = DType::kFloat32, ReduceOp reduction = ReduceOp::kNone) {
  LocalSpec spec;
  spec.tensors.push_back({"", std::nullopt, dtype, reduction});
  return std::vector<LocalSpec>(static_cast<std::size_t>(numRanks), spec);
}

std::vector<Plan> plansOf(const std::vector<LocalSpec>& specs, HostMap hosts = {}) {
  const Result<GlobalSpec> spec = mergeSpecs(specs);
  EXPECT_TRUE(spec.isOk()) << spec.status().message();
  std::vector<Plan> plans;
  for (std::size_t rank = 0; spec.isOk() && rank < specs.size(); ++rank) {
    Result<Plan> plan = redistribute(spec.value(), static_cast<Rank>(rank), hosts);
    EXPECT_TRUE(plan.isOk()) << plan.status().message();
    if (plan.isOk()) {
      plans.push_back(std::move(plan).value());
    }
  }
  return plans;
}

std::uint64_t remoteBytes(const std::vector<Plan>& plans) {
  std::uint64_t bytes = 0;
  for (const Plan& plan : plans) {
    for (const PlanEdge& edge : plan.receives) {
      bytes += edge.bytes;
    }
  }
  return bytes;
}

// Checks all rules for specs that fit; returns "" or the first broken rule.
std::string findFault(const std::vector<LocalSpec>& specs, std::uint64_t seed, HostMap hosts) {
  const Result<GlobalSpec> spec = mergeSpecs(specs);
  if (!spec.isOk()) {
    return "mergeSpecs refuses: " + spec.status().message();
  }
  const bool mustRefuse = !spec->allowGaps && hasGap(specs);
  std::vector<Plan> plans;
  std::set<std::string> errors;
  for (std::size_t rank = 0; rank < specs.size(); ++rank) {
    Result<Plan> plan = redistribute(spec.value(), static_cast<Rank>(rank), hosts);
    if (plan.isOk() == mustRefuse) {
      return plan.isOk() ? "a gap is not refused" : "refused: " + plan.status().message();
    }
    if (!plan.isOk()) {
      errors.insert(plan.status().message());
      continue;
    }
    if (const Status status = validate(plan.value()); !status.isOk()) {
      return "rank " + std::to_string(rank) + ": " + status.message();
    }
    plans.push_back(std::move(plan).value());
  }
  if (mustRefuse) {
    return errors.size() == 1 ? "" : "ranks refuse with different texts";
  }
  const RankBytes inputs = fillInputs(seed, specs);
  RankBytes outputs = blankOutputs(specs);
  runPlans(plans, inputs, outputs);
  if (outputs != expectedOutputs(specs, inputs)) {
    return "outputs differ";
  }
  if (std::string mismatch = findEdgeMismatch(plans); !mismatch.empty()) {
    return mismatch;
  }
  const BytesFromPeers expected = bytesFromPeers(specs);
  const Result<Traffic> traffic = trafficOf(spec.value(), hosts);
  if (!traffic.isOk() || remoteBytes(plans) != expected.planned) {
    return "bytes between ranks are not the planned ones";
  }
  return traffic->lowerBoundBytes == expected.least ? "" : "the lower bound is wrong";
}

TEST(Redistribute, MatchesTheNaiveModelOnRandomCases) {
  const std::uint64_t numCases = numOracleCases(20000);
  RandomOptions options;
  options.hasForbiddenGaps = true;
  std::size_t numFaults = 0;
  for (std::uint64_t seed = 0; seed < numCases && numFaults < 3; ++seed) {
    const RandomCase randomCase = makeRandomCase(seed, options);
    // Every third case lies on two or three hosts.
    std::vector<std::int32_t> hosts;
    for (std::size_t rank = 0; seed % 3 == 0 && rank < randomCase.specs.size(); ++rank) {
      hosts.push_back(static_cast<std::int32_t>(seed % 2 == 0 ? rank / 2 : rank % 2));
    }
    const std::string fault = findFault(randomCase.specs, seed, hosts);
    numFaults += fault.empty() ? 0 : 1;
    EXPECT_EQ(fault, "") << describe(randomCase);
  }
}

// The generator must reach all its features, or the test above proves little.
TEST(Redistribute, RandomCasesCoverTheFeatures) {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const RandomCase randomCase = makeRandomCase(seed);
    std::set<DType> dtypes;
    for (const LocalSpec& spec : randomCase.specs) {
      seen["gaps allowed"] += spec.allowGaps;
      seen["several tensors"] += spec.tensors.size() > 1;
      for (const TensorDecl& decl : spec.tensors) {
        seen["dtype " + std::string(dtypeName(decl.dtype.value_or(DType::kFloat32)))] += 1;
        seen["reduction " + std::string(reduceOpName(decl.reduction))] += 1;
        seen["no shape"] += !decl.shape;
        seen["cast"] += decl.outputDtype && decl.dtype && decl.outputDtype != decl.dtype;
        seen["cast of a reduction"] += decl.outputDtype && decl.reduction != ReduceOp::kNone;
        seen["dtype of one side only"] += !decl.dtype;
        seen["dims " + std::to_string(decl.shape ? decl.shape->size() : -1)] += 1;
      }
      for (const LocalTensor& input : spec.inputs) {
        seen["replica"] += input.replicaClass != 0;
        seen["no slice"] += input.slices.empty();
        seen["several slices"] += input.slices.size() > 1;
        seen["four slices"] += input.slices.size() > 3;
        for (const PlacedSlice& placed : input.slices) {
          seen["empty box"] += std::count(placed.slice.shape.begin(), placed.slice.shape.end(), 0) > 0;
        }
      }
    }
    const Result<GlobalSpec> spec = mergeSpecs(randomCase.specs);
    ASSERT_TRUE(spec.isOk());
    const Result<Plan> plan = redistribute(spec.value(), 0);
    ASSERT_TRUE(plan.isOk());
    seen["combine"] += plan->firstCombine < plan->moves.size();
    seen["combine with two sources on one edge"] +=
        std::count_if(plan->sendItems.begin(), plan->sendItems.end(),
                      [](const PlanSendItem& item) { return item.withPrevious; }) > 0;
    seen["copy from a peer"] += plan->firstCombine > plan->numOwnCopies;
  }
  for (int d = 0; d <= 7; ++d) {
    EXPECT_GT(seen["dims " + std::to_string(d)], 20) << d;
  }
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    EXPECT_GT(seen["dtype " + std::string(dtypeName(static_cast<DType>(dtype)))], 20) << dtype;
  }
  for (int op = 0; op < kNumReduceOps; ++op) {
    EXPECT_GT(seen["reduction " + std::string(reduceOpName(static_cast<ReduceOp>(op)))], 20) << op;
  }
  for (const char* feature : {"gaps allowed", "several tensors", "no shape", "replica", "no slice", "several slices",
                              "four slices", "empty box", "combine", "combine with two sources on one edge",
                              "copy from a peer", "cast", "cast of a reduction", "dtype of one side only"}) {
    EXPECT_GT(seen[feature], 50) << feature;
  }
}

TEST(Redistribute, MakesTheSamePlanEveryTime) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const RandomCase randomCase = makeRandomCase(seed);
    EXPECT_EQ(plansOf(randomCase.specs), plansOf(randomCase.specs)) << seed;
  }
}

TEST(Redistribute, GivesEqualFingerprintsToRanksAndDifferentOnesToSpecs) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::vector<Plan> plans = plansOf(makeRandomCase(seed).specs);
    for (const Plan& plan : plans) {
      EXPECT_EQ(plan.fingerprint, plans[0].fingerprint);
    }
    EXPECT_TRUE(seen.insert(plans[0].fingerprint).second) << seed;
  }
}

TEST(Redistribute, LetsTheHigherRankThenTheHigherInputWin) {
  std::vector<LocalSpec> specs = specsOf(3);
  specs[0].inputs = {boxTensor({0}, {8}), boxTensor({4}, {2})};
  specs[1].inputs = {boxTensor({2}, {3})};
  specs[2].outputs = {boxTensor({0}, {8})};
  const std::vector<Plan> plans = plansOf(specs);
  const std::string text = dump(plans[2]);
  // [0, 2) and [6, 8) from inputs[0] of rank 0, [2, 5) from rank 1, [5, 6) from inputs[1] of rank 0.
  ASSERT_EQ(plans[2].moves.size(), 4U) << text;
  EXPECT_NE(text.find("outputs[0] [3] at [2] = rank 1 inputs[0] at [0]"), std::string::npos) << text;
  EXPECT_NE(text.find("outputs[0] [1] at [5] = rank 0 inputs[1] at [1]"), std::string::npos) << text;
  EXPECT_NE(text.find("outputs[0] [2] at [6] = rank 0 inputs[0] at [6]"), std::string::npos) << text;
}

TEST(Redistribute, MergesCellsThatHaveTheSameSources) {
  // A cross of two bars over a plate: the plate's four corners stay, the bars are one piece each where possible.
  std::vector<LocalSpec> specs = specsOf(2, DType::kFloat32, ReduceOp::kSum);
  specs[0].inputs = {boxTensor({0, 0}, {9, 9}), boxTensor({3, 0}, {3, 9})};
  specs[1].inputs = {boxTensor({3, 0}, {3, 9})};
  specs[1].outputs = {boxTensor({0, 0}, {9, 9})};
  const std::vector<Plan> plans = plansOf(specs);
  EXPECT_EQ(plans[1].moves.size(), 3U) << dump(plans[1]);
  EXPECT_EQ(plans[1].moves.size() - plans[1].firstCombine, 1U) << dump(plans[1]);
}

TEST(Redistribute, MergesCellsOfReplicasThatOthersCut) {
  std::vector<LocalSpec> specs = specsOf(3);
  specs[0].inputs = {boxTensor({0, 0}, {8, 8}, 7)};
  specs[1].inputs = {boxTensor({0, 0}, {8, 3}, 7), boxTensor({2, 0}, {3, 8}, 7)};
  specs[2].inputs = {boxTensor({0, 0}, {8, 8}, 7)};
  specs[0].outputs = {boxTensor({0, 0}, {8, 8})};
  const std::vector<Plan> plans = plansOf(specs);
  EXPECT_EQ(plans[0].moves.size(), 1U) << dump(plans[0]);
}

TEST(Redistribute, ReadsItsOwnReplicaThenItsHosts) {
  std::vector<LocalSpec> specs = specsOf(4);
  for (LocalSpec& spec : specs) {
    spec.outputs = {boxTensor({0}, {100})};
  }
  for (const std::size_t holder : {0U, 1U, 3U}) {
    specs[holder].inputs = {boxTensor({0}, {100}, 7)};
  }
  const std::vector<std::int32_t> hosts{5, 5, 9, 9};
  const std::vector<Plan> plans = plansOf(specs, hosts);
  for (const std::size_t holder : {0U, 1U, 3U}) {
    EXPECT_TRUE(plans[holder].receives.empty()) << dump(plans[holder]);
  }
  ASSERT_EQ(plans[2].receives.size(), 1U);
  EXPECT_EQ(plans[2].receives[0].peer, 3);
}

// max / mean of the bytes that the holders send.
double imbalance(const std::vector<Plan>& plans, const std::vector<Rank>& holders) {
  std::uint64_t sum = 0;
  std::uint64_t most = 0;
  for (const Rank holder : holders) {
    std::uint64_t bytes = 0;
    for (const PlanEdge& edge : plans[static_cast<std::size_t>(holder)].sends) {
      bytes += edge.bytes;
    }
    sum += bytes;
    most = std::max(most, bytes);
  }
  return sum == 0 ? 1 : static_cast<double>(most) * static_cast<double>(holders.size()) / static_cast<double>(sum);
}

// numBoxes boxes of `shape`, one behind the other, each on every holder; every rank wants all boxes numOutputs times.
std::vector<LocalSpec> replicatedSpecs(int numRanks, const std::vector<Rank>& holders, const Dims& shape, int numBoxes,
                                       int numOutputs) {
  std::vector<LocalSpec> specs = specsOf(numRanks);
  for (int box = 0; box < numBoxes; ++box) {
    Dims offset = Dims::filled(shape.size(), 0);
    offset[0] = box * shape[0];
    for (const Rank holder : holders) {
      specs[static_cast<std::size_t>(holder)].inputs.push_back(boxTensor(offset, shape, 7));
    }
  }
  Dims whole = shape;
  whole[0] = numBoxes * shape[0];  // g++ 14 assumes that a shape may be empty, so *= would read unwritten memory
  for (std::size_t rank = 0; rank < specs.size(); ++rank) {
    for (int output = 0; output < numOutputs; ++output) {
      specs[rank].outputs.push_back(boxTensor(Dims::filled(shape.size(), 0), whole));
    }
  }
  return specs;
}

std::vector<Plan> replicatedTo(int numRanks, const std::vector<Rank>& holders, const Dims& shape, int numBoxes,
                               int numOutputs) {
  return plansOf(replicatedSpecs(numRanks, holders, shape, numBoxes, numOutputs));
}

TEST(Redistribute, SharesLargeBoxesAmongAllHolders) {
  for (const std::vector<Rank>& holders : {std::vector<Rank>{0, 1}, {1, 3, 5}, {0, 2, 4, 6}, {0, 1, 2, 3, 4, 5, 6}}) {
    for (const Dims& shape : {Dims{1024, 64}, Dims{3, 50000}, Dims{8, 40000}, Dims{1, 1000000}}) {
      const std::vector<Plan> plans = replicatedTo(8, holders, shape, 1, 1);
      EXPECT_LE(imbalance(plans, holders), 1.2) << holders.size() << " holders of " << toString(shape);
      // One reader alone is served by all holders too.
      const std::vector<Plan> one = replicatedTo(static_cast<int>(holders.back()) + 2, holders, shape, 1, 1);
      EXPECT_EQ(one.back().receives.size(), holders.size());
    }
  }
}

TEST(Redistribute, CutsLargeBoxesWithoutLosingAnElement) {
  EXPECT_EQ(findFault(replicatedSpecs(5, {0, 2, 3}, {1000, 17}, 1, 1), 1, {}), "");
  EXPECT_EQ(findFault(replicatedSpecs(4, {0, 1, 2}, {2, 9001}, 1, 1), 2, {}), "");
  EXPECT_EQ(findFault(replicatedSpecs(4, {1, 2}, {1, 1, 16385}, 2, 1), 3, std::vector<std::int32_t>{0, 0, 1, 1}), "");
}

TEST(Redistribute, TakesTurnsWithSmallBoxes) {
  // One reader alone: the boxes go round.
  EXPECT_LE(imbalance(replicatedTo(3, {0, 1}, {100}, 60, 1), {0, 1}), 1.2);
  EXPECT_LE(imbalance(replicatedTo(4, {0, 1, 2}, {100}, 1, 60), {0, 1, 2}), 1.2);
  for (const std::vector<Rank>& holders : {std::vector<Rank>{0, 1}, {1, 3, 5}, {0, 2, 4, 6}}) {
    EXPECT_LE(imbalance(replicatedTo(12 + static_cast<int>(holders.size()), holders, {100}, 1, 1), holders), 1.2)
        << holders.size();
    EXPECT_LE(imbalance(replicatedTo(8, holders, {100}, 60, 1), holders), 1.2) << holders.size();
    EXPECT_LE(imbalance(replicatedTo(8, holders, {100}, 1, 60), holders), 1.2) << holders.size();
  }
}

TEST(Redistribute, SharesTheAddendsOfReplicatedPartials) {
  // Four addends, each on two ranks: the eight ranks all want the sum.
  Layout layout{{4, 2}, {0, 1, 2, 3, 4, 5, 6, 7}, {{PlacementKind::kPartial, 0, 1, ReduceOp::kSum}, {}}, {256, 256}};
  std::vector<LocalSpec> specs = specsOf(9, DType::kFloat32, ReduceOp::kSum);
  std::vector<Rank> holders;
  for (Rank rank = 0; rank < 8; ++rank) {
    const LocalShare share = shareOf(layout, rank).value();
    specs[static_cast<std::size_t>(rank)].inputs.push_back({0, share.localShape, share.slices, share.replicaClass});
    holders.push_back(rank);
  }
  for (LocalSpec& spec : specs) {
    spec.outputs.push_back(boxTensor({0, 0}, {256, 256}));
  }
  EXPECT_LE(imbalance(plansOf(specs), holders), 1.2);
}

// HSDP: sharded over four, replicated over two, gathered everywhere. Large and small.
TEST(Redistribute, BalancesAShardedAndReplicatedLayout) {
  for (const std::int64_t rows : {std::int64_t{16}, std::int64_t{4096}}) {
    const Layout layout{{2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}, {{}, {PlacementKind::kShard, 0}}, {rows, 64}};
    std::vector<LocalSpec> specs = specsOf(8);
    std::vector<Rank> holders;
    for (Rank rank = 0; rank < 8; ++rank) {
      const LocalShare share = shareOf(layout, rank).value();
      specs[static_cast<std::size_t>(rank)].inputs.push_back({0, share.localShape, share.slices, share.replicaClass});
      specs[static_cast<std::size_t>(rank)].outputs.push_back(boxTensor({0, 0}, {rows, 64}));
      holders.push_back(rank);
    }
    EXPECT_LE(imbalance(plansOf(specs), holders), 1.2) << rows;
  }
}

TEST(Redistribute, ListsGapsWithTheSameTextOnEveryRank) {
  std::vector<LocalSpec> specs = specsOf(3);
  for (LocalSpec& spec : specs) {
    spec.name = "step";
    spec.tensors[0].name = "w";
  }
  specs[0].inputs = {boxTensor({0, 0}, {4, 4})};
  specs[1].outputs = {boxTensor({0, 0}, {4, 4}), boxTensor({0, 0}, {4, 6})};
  specs[2].outputs = {boxTensor({2, 0}, {3, 4})};
  const GlobalSpec spec = mergeSpecs(specs).value();
  for (Rank rank = 0; rank < 3; ++rank) {
    const Result<Plan> plan = redistribute(spec, rank);
    ASSERT_FALSE(plan.isOk());
    EXPECT_EQ(plan.status().code(), StatusCode::kGap);
    EXPECT_EQ(plan.status().message(),
              "compile_op 'step': no input covers 2 regions of the outputs: rank 1, outputs[1], tensor 'w', [0:4, "
              "4:6]; rank 2, outputs[0], "
              "tensor 'w', [4:5, 0:4]. Give inputs that cover them, shrink the outputs, or pass allow_gaps=True to "
              "leave these elements as they "
              "are");
  }
  EXPECT_EQ(trafficOf(spec).status().message(), redistribute(spec, 0).status().message());
}

TEST(Redistribute, ListsEightGapsAndCountsTheRest) {
  std::vector<LocalSpec> specs = specsOf(2);
  for (std::int64_t i = 0; i < 20; ++i) {
    specs[1].outputs.push_back(boxTensor({i}, {1}));
  }
  specs[0].inputs = {boxTensor({0}, {1})};
  const std::string text = redistribute(mergeSpecs(specs).value(), 0).status().message();
  EXPECT_NE(text.find("no input covers 19 regions"), std::string::npos) << text;
  EXPECT_NE(text.find("outputs[8] [8:9]; and 11 more."), std::string::npos) << text;
  EXPECT_EQ(text.find("outputs[9]"), std::string::npos) << text;
}

TEST(Redistribute, ListsOverlapsWithTheSameTextOnEveryRankWhereTheyAreAMistake) {
  std::vector<LocalSpec> specs = specsOf(3);
  for (LocalSpec& spec : specs) {
    spec.name = "step";
    spec.tensors[0].name = "w";
    spec.overlap = Overlap::kError;
  }
  specs[0].inputs = {boxTensor({0, 0}, {4, 4}), boxTensor({4, 0}, {4, 4})};
  specs[1].inputs = {boxTensor({3, 0}, {2, 4})};
  specs[2].outputs = {boxTensor({0, 0}, {8, 4})};
  const GlobalSpec spec = mergeSpecs(specs).value();
  for (Rank rank = 0; rank < 3; ++rank) {
    const Result<Plan> plan = redistribute(spec, rank);
    ASSERT_FALSE(plan.isOk());
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(plan.status().message(),
              "compile_op 'step': 2 pairs of inputs overlap, and overlap is 'error': tensor 'w': rank 0, inputs[0] "
              "[0:4, 0:4] and rank 1, "
              "inputs[0] [3:5, 0:4]; tensor 'w': rank 0, inputs[1] [4:8, 0:4] and rank 1, inputs[0] [3:5, 0:4]. Give "
              "inputs that do not, a "
              "reduction that combines them, overlap='last' to take the last, or overlap='any' where they are equal");
  }
  EXPECT_EQ(trafficOf(spec).status().message(), redistribute(spec, 0).status().message());
  // Neighbours, replicas and addends are no mistake.
  specs[1].inputs.clear();
  EXPECT_TRUE(redistribute(mergeSpecs(specs).value(), 2).isOk());
  specs[1].inputs = {boxTensor({3, 0}, {2, 4})};
  for (LocalSpec& each : specs) {
    each.tensors[0].reduction = ReduceOp::kSum;
  }
  EXPECT_TRUE(redistribute(mergeSpecs(specs).value(), 2).isOk());
  for (LocalSpec& each : specs) {
    each.tensors[0].reduction = ReduceOp::kNone;
    for (LocalTensor& input : each.inputs) {
      input.replicaClass = 7;
    }
  }
  EXPECT_TRUE(redistribute(mergeSpecs(specs).value(), 2).isOk());
}

TEST(Redistribute, FindsTheOverlapsThatANaiveSearchFinds) {
  int numRefused = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    std::vector<LocalSpec> specs = makeRandomCase(seed).specs;
    std::size_t expected = 0;
    for (LocalSpec& spec : specs) {
      spec.overlap = Overlap::kError;
      spec.allowGaps = true;
    }
    const GlobalSpec spec = mergeSpecs(specs).value();
    struct Input {
      const LocalTensor* local;
      const Slice* slice;
    };
    std::vector<Input> inputs;
    for (const RankSpec& rank : spec.ranks) {
      for (const LocalTensor& input : rank.inputs) {
        for (const PlacedSlice& placed : input.slices) {
          inputs.push_back({&input, &placed.slice});
        }
      }
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      for (std::size_t j = i + 1; j < inputs.size(); ++j) {
        const LocalTensor& a = *inputs[i].local;
        const LocalTensor& b = *inputs[j].local;
        const bool isOneContribution = &a == &b || (a.replicaClass != 0 && a.replicaClass == b.replicaClass);
        if (a.tensor == b.tensor && !isOneContribution &&
            spec.tensors[static_cast<std::size_t>(a.tensor)].reduction == ReduceOp::kNone) {
          bool overlaps = true;
          for (int d = 0; d < inputs[i].slice->shape.size(); ++d) {
            overlaps = overlaps && std::max(inputs[i].slice->offset[d], inputs[j].slice->offset[d]) <
                                       std::min(inputs[i].slice->offset[d] + inputs[i].slice->shape[d],
                                                inputs[j].slice->offset[d] + inputs[j].slice->shape[d]);
          }
          expected += overlaps ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(redistribute(spec, 0).isOk(), expected == 0) << seed;
    numRefused += expected != 0 ? 1 : 0;
  }
  EXPECT_GT(numRefused, 100);
}

TEST(Redistribute, TakesTheNearestWhereOverlappingInputsAreEqual) {
  std::vector<LocalSpec> specs = specsOf(4);
  for (LocalSpec& spec : specs) {
    spec.inputs = {boxTensor({0}, {64})};
    spec.outputs = {boxTensor({0}, {64})};
  }
  EXPECT_GT(remoteBytes(plansOf(specs)), 0U);
  for (LocalSpec& spec : specs) {
    spec.overlap = Overlap::kAny;
  }
  EXPECT_EQ(remoteBytes(plansOf(specs)), 0U);
}

TEST(Redistribute, RefusesAWrongRankOrHostMap) {
  const GlobalSpec spec = mergeSpecs(specsOf(2)).value();
  EXPECT_EQ(redistribute(spec, 2).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(redistribute(spec, -1).status().code(), StatusCode::kInvalidArgument);
  const std::vector<std::int32_t> hosts{0, 0, 0};
  EXPECT_EQ(redistribute(spec, 0, hosts).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(trafficOf(spec, hosts).status().code(), StatusCode::kInvalidArgument);
}

TEST(Redistribute, CountsTrafficPerPair) {
  std::vector<LocalSpec> specs = specsOf(2);
  specs[0].inputs = {boxTensor({0}, {6})};
  specs[1].inputs = {boxTensor({6}, {4})};
  specs[0].outputs = {boxTensor({0}, {10})};
  specs[1].outputs = {boxTensor({5}, {5})};
  const Traffic traffic = trafficOf(mergeSpecs(specs).value()).value();
  const std::vector<Traffic::Edge> edges{{0, 0, 24, 1}, {0, 1, 4, 1}, {1, 0, 16, 1}, {1, 1, 16, 1}};
  EXPECT_EQ(traffic.edges, edges);
  EXPECT_EQ(traffic.lowerBoundBytes, 20U);
}

// A plan moves such an element for each output; no plan must.
TEST(Redistribute, LowerBoundCountsAnElementWantedTwiceOnce) {
  std::vector<LocalSpec> specs = specsOf(2);
  specs[0].inputs = {boxTensor({0}, {10})};
  specs[1].outputs = {boxTensor({0}, {8}), boxTensor({6}, {4}), boxTensor({2}, {8})};
  const Traffic traffic = trafficOf(mergeSpecs(specs).value()).value();
  EXPECT_EQ(traffic.edges, (std::vector<Traffic::Edge>{{0, 1, 80, 3}}));
  EXPECT_EQ(traffic.lowerBoundBytes, 40U);
}

// Boxes too irregular for the cover grid take another way through the planner.
TEST(Redistribute, MatchesTheNaiveModelWhenBoxesAreManyAndIrregular) {
  RandomOptions options;
  options.minRanks = 2;
  options.maxTensors = 1;
  options.hasLayouts = false;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    std::vector<LocalSpec> specs = specsOf(4, DType::kInt32, seed % 2 == 0 ? ReduceOp::kNone : ReduceOp::kSum);
    std::uint64_t state = seed + 1;
    const auto next = [&state](std::int64_t below) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(below));
    };
    specs[0].inputs.push_back(boxTensor({0, 0, 0}, {40, 30, 20}));
    for (int i = 0; i < 60; ++i) {
      const Dims offset{next(30), next(20), next(10)};
      specs[static_cast<std::size_t>(i % 4)].inputs.push_back(boxTensor(
          offset, {1 + next(10), 1 + next(10), 1 + next(10)}, seed < 2 ? 0 : static_cast<std::uint64_t>(next(3))));
    }
    for (LocalSpec& spec : specs) {
      spec.outputs.push_back(boxTensor({next(10), next(10), next(10)}, {10 + next(20), 5 + next(15), 2 + next(8)}));
    }
    EXPECT_EQ(findFault(specs, seed, {}), "") << seed;
  }
}

}  // namespace
}  // namespace shardwire::internal
