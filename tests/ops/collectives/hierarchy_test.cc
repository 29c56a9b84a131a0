// The hierarchical programs on random placements of ranks, run in memory: the right bytes everywhere, and each part
// crosses between two hosts once. A rank plans with a part of its peers' lists, here and in the direct programs: the
// plans are those of the whole lists.
#include "ops/collectives/hierarchy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "ops/collectives/stages.h"
#include "tests/support/run_programs.h"

namespace shardwire::internal {
namespace {

using testing::Bytes;
using testing::RanksInMemory;

struct Placement {
  Topology topology;
  std::string text;
};

Placement randomPlacement(std::mt19937& random) {
  Placement placement;
  const int n = 1 + static_cast<int>(random() % 9);
  const int most = 1 + static_cast<int>(random() % static_cast<unsigned>(n));
  std::set<std::int32_t> hosts;
  for (int rank = 0; rank < n; ++rank) {
    placement.topology.hosts.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(most)) * 7);
    hosts.insert(placement.topology.hosts.back());
    placement.text += fmt::format("{} ", placement.topology.hosts.back());
  }
  placement.topology.worldSize = n;
  placement.topology.numHosts = static_cast<int>(hosts.size());
  return placement;
}

Bytes patternOf(Rank rank, std::size_t bytes) {
  Bytes pattern(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    pattern[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rank) * 131 + 1);
  }
  return pattern;
}

class Hierarchy : public ::testing::TestWithParam<unsigned> {};

TEST_P(Hierarchy, AllGatherBringsEachTensorToEachOtherHostOnce) {
  std::mt19937 random(GetParam());
  const Placement placement = randomPlacement(random);
  SCOPED_TRACE(fmt::format("seed {}, hosts {}", GetParam(), placement.text));
  const auto n = static_cast<std::size_t>(placement.topology.worldSize);
  const std::int64_t elems = static_cast<std::int64_t>(random() % 50);
  RanksInMemory machine({.kind = Collective::kAllGather, .dtype = DType::kInt16, .numElems = elems},
                        Algorithm::kHierarchical, placement.topology);
  const std::size_t bytes = static_cast<std::size_t>(elems) * 2;
  for (std::size_t rank = 0; rank < n; ++rank) {
    machine.inputs.push_back({patternOf(static_cast<Rank>(rank), bytes)});
    machine.outputs.emplace_back(n, Bytes(bytes));
  }
  machine.run();
  for (std::size_t rank = 0; rank < n; ++rank) {
    for (std::size_t from = 0; from < n; ++from) {
      EXPECT_EQ(machine.outputs[rank][from], patternOf(static_cast<Rank>(from), bytes)) << rank << " from " << from;
    }
  }
  EXPECT_EQ(machine.acrossBytes, bytes * n * static_cast<std::size_t>(placement.topology.numHosts - 1));
}

TEST_P(Hierarchy, BroadcastReachesAll) {
  std::mt19937 random(GetParam());
  const Placement placement = randomPlacement(random);
  const Rank root = static_cast<Rank>(random() % static_cast<unsigned>(placement.topology.worldSize));
  SCOPED_TRACE(fmt::format("seed {}, hosts {}, root {}", GetParam(), placement.text, root));
  const std::int64_t elems = static_cast<std::int64_t>(random() % 500);
  RanksInMemory machine({.kind = Collective::kBroadcast, .dtype = DType::kInt32, .root = root, .numElems = elems},
                        Algorithm::kHierarchical, placement.topology);
  const Bytes pattern = patternOf(root, static_cast<std::size_t>(elems) * 4);
  for (Rank rank = 0; rank < placement.topology.worldSize; ++rank) {
    machine.inputs.push_back({pattern});  // read on root only
    machine.outputs.push_back({Bytes(pattern.size())});
  }
  machine.run();
  for (Rank rank = 0; rank < placement.topology.worldSize; ++rank) {
    EXPECT_EQ(machine.outputs[static_cast<std::size_t>(rank)][0] == pattern, rank != root || pattern.empty()) << rank;
  }
}

TEST_P(Hierarchy, AllReduceGivesTheBitsOfChunks) {
  std::mt19937 random(GetParam());
  const Placement placement = randomPlacement(random);
  SCOPED_TRACE(fmt::format("seed {}, hosts {}", GetParam(), placement.text));
  const auto n = static_cast<std::size_t>(placement.topology.worldSize);
  const std::int64_t elems = static_cast<std::int64_t>(random() % 500);
  RanksInMemory machine(
      {.kind = Collective::kAllReduce, .dtype = DType::kInt32, .op = ReduceOp::kSum, .numElems = elems},
      Algorithm::kHierarchical, placement.topology);
  std::vector<std::int32_t> sum(static_cast<std::size_t>(elems));
  for (std::size_t rank = 0; rank < n; ++rank) {
    std::vector<std::int32_t> values(sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      values[i] = static_cast<std::int32_t>(random() % 1000);
      sum[i] += values[i];
    }
    Bytes bytes(sum.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    machine.inputs.push_back({bytes});
    machine.outputs.push_back({Bytes(bytes.size())});
  }
  machine.run();
  for (std::size_t rank = 0; rank < n; ++rank) {
    EXPECT_EQ(std::memcmp(machine.outputs[rank][0].data(), sum.data(), sum.size() * 4), 0) << rank;
  }
}

TEST_P(Hierarchy, PlansAreThoseOfWholeLists) {
  std::mt19937 random(GetParam());
  const Placement placement = randomPlacement(random);
  SCOPED_TRACE(fmt::format("seed {}, hosts {}", GetParam(), placement.text));
  const Topology& topology = placement.topology;
  const HostGroups groups(topology.hosts);
  const CollectiveCall call{.kind = Collective::kAllGather, .dtype = DType::kInt16, .numElems = 50000};
  const auto partOf = [&](Rank owner) {
    LocalTensor part = flatPart(owner * call.numElems, call.numElems);
    part.replicaClass = 1;
    return part;
  };
  const auto specOf = [&](Rank rank, bool isWithin) {
    RankSpec spec;
    for (Rank owner = 0; owner < topology.worldSize; ++owner) {
      const bool has = isWithin ? groups.holds(rank, owner) : rank == owner;
      if (has || isWithin || groups.holds(rank, owner)) {
        (has ? spec.inputs : spec.outputs).push_back(partOf(owner));
      }
    }
    if (isWithin) {
      spec.outputs.push_back(partOf(rank));
    }
    return spec;
  };
  for (Rank rank = 0; rank < topology.worldSize; ++rank) {
    const Program program = programOf(call, Algorithm::kHierarchical, rank, topology);
    for (const bool isWithin : {false, true}) {
      const Plan& plan = program.stages.at(isWithin ? 1 : 0).plan;
      Plan whole = planStage(
          call, ReduceOp::kNone, call.numElems * topology.worldSize, rank, topology.worldSize,
          [&](Rank r) { return specOf(r, isWithin); }, topology.hosts);
      whole.fingerprint = plan.fingerprint;
      EXPECT_TRUE(plan == whole) << "rank " << rank << ", stage " << isWithin;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Hierarchy, ::testing::Range(1U, 61U));

// ---- the direct programs of lists

constexpr std::int64_t kElems = 5;
const CollectiveCall kAllGather{.kind = Collective::kAllGather, .dtype = DType::kInt16, .numElems = kElems};
const CollectiveCall kGather{.kind = Collective::kGather, .dtype = DType::kInt16, .root = 1, .numElems = kElems};
const CollectiveCall kReduceScatter{
    .kind = Collective::kReduceScatter, .dtype = DType::kInt16, .op = ReduceOp::kSum, .numElems = kElems};

// The lists of one rank.
RankSpec wholeLists(const CollectiveCall& call, Rank rank, int worldSize) {
  std::vector<LocalTensor> all;
  for (Rank each = 0; each < worldSize; ++each) {
    all.push_back(flatPart(each * kElems, kElems));
  }
  const std::vector<LocalTensor> mine = {flatPart(rank * kElems, kElems)};
  if (call.kind == Collective::kReduceScatter) {
    return {.inputs = all, .outputs = mine};
  }
  const bool collects = call.kind == Collective::kAllGather || rank == call.root;
  return {.inputs = mine, .outputs = collects ? all : std::vector<LocalTensor>()};
}

TEST(PlansOfLists, AreThoseOfWholeLists) {
  for (int worldSize = 2; worldSize <= 9; ++worldSize) {
    for (Rank rank = 0; rank < worldSize; ++rank) {
      for (const CollectiveCall& call : {kAllGather, kGather, kReduceScatter}) {
        const Plan plan = programOf(call, Algorithm::kDirect, rank, {.worldSize = worldSize}).stages.at(0).plan;
        Plan whole = planStage(call, call.op, kElems * worldSize, rank, worldSize,
                               [&](Rank r) { return wholeLists(call, r, worldSize); });
        whole.fingerprint = plan.fingerprint;
        EXPECT_TRUE(plan == whole) << collectiveName(call.kind) << ", rank " << rank << " of " << worldSize;
      }
    }
  }
}

long mostKiB() {
  rusage usage{};
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  return usage.ru_maxrss;
}

// The whole lists of 1,000 ranks would take 600 MB.
TEST(PlansOfLists, OfManyRanksTakeLittleMemory) {
  const long before = mostKiB();
  for (const CollectiveCall& call : {kAllGather, kReduceScatter}) {
    const Program program = programOf(call, Algorithm::kDirect, 7, {.worldSize = 1000});
    EXPECT_EQ(program.stages.at(0).plan.receives.size(), 999U);
  }
  EXPECT_LT(mostKiB() - before, 300 << 10);
}

}  // namespace
}  // namespace shardwire::internal
