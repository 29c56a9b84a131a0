// The tree over ranks, and all_reduce by the tree on random groups, run in memory: the bits of a sum in rank order, and
// few links.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "ops/collectives/rank_tree.h"
#include "tests/support/random.h"
#include "tests/support/run_programs.h"

namespace shardwire::internal {
namespace {

using testing::Bytes;
using testing::Random;
using testing::RanksInMemory;

TEST(RankTree, HasEachRankBelowOneOtherAndBlocksOfNeighbours) {
  for (const int width : {2, 8, 32}) {
    for (const int n : {1, 2, 7, 8, 9, 17, 63, 64, 65, 200, 513, 1024}) {
      SCOPED_TRACE(fmt::format("{} ranks by {}", n, width));
      const RankTree tree(n, width);
      int numChildren = 0;
      std::vector<int> depth(static_cast<std::size_t>(n));
      for (Rank rank = 0; rank < n; ++rank) {
        const std::vector<Rank> children = tree.childrenOf(rank);
        numChildren += static_cast<int>(children.size());
        EXPECT_LE(static_cast<int>(children.size()), (width - 1) * tree.levelOf(rank));
        for (const Rank child : children) {
          ASSERT_TRUE(child > rank && child < n) << child;
          EXPECT_EQ(tree.parentOf(child), rank);
        }
        if (rank > 0) {
          const auto parent = static_cast<std::size_t>(tree.parentOf(rank));
          depth[static_cast<std::size_t>(rank)] = depth[parent] + 1;
          EXPECT_LE(depth[static_cast<std::size_t>(rank)], tree.numLevels());
        }
      }
      EXPECT_EQ(numChildren, n - 1);
      EXPECT_EQ(tree.endOf(0, tree.numLevels()), n);
      EXPECT_EQ(tree.parentOf(0), -1);
    }
  }
}

TEST(RankTree, TakesRanksByItsWidth) {
  const RankTree tree(200, 8);
  EXPECT_EQ(tree.numLevels(), 3);
  EXPECT_EQ(tree.childrenOf(0, 2), (std::vector<Rank>{64, 128, 192}));
  EXPECT_EQ(tree.childrenOf(192, 0), (std::vector<Rank>{193, 194, 195, 196, 197, 198, 199}));
  EXPECT_EQ(tree.childrenOf(192, 1), std::vector<Rank>());
  EXPECT_EQ(tree.childrenOf(64), (std::vector<Rank>{72, 80, 88, 96, 104, 112, 120, 65, 66, 67, 68, 69, 70, 71}));
  EXPECT_EQ(tree.parentOf(72), 64);
  EXPECT_EQ(tree.parentOf(73), 72);
  EXPECT_EQ(RankTree(std::numeric_limits<Rank>::max(), 32).numLevels(), 7);
}

// The sum of these numbers depends on the order of the additions.
void fillRandom(Random& random, DType dtype, Bytes& bytes) {
  const std::size_t elemBytes = elementBytes(dtype);
  for (std::size_t at = 0; at < bytes.size(); at += elemBytes) {
    if (dtype == DType::kFloat32) {
      const float value =
          static_cast<float>(random.between(-1000000, 1000000)) / static_cast<float>(random.between(1, 3000));
      std::memcpy(&bytes[at], &value, sizeof value);
    } else {
      testing::encodeSmall(dtype, static_cast<int>(random.between(1, 100)), &bytes[at]);
    }
  }
}

void expectSumInRankOrder(Random& random, int n, std::size_t elems, DType dtype, ReduceOp op) {
  SCOPED_TRACE(fmt::format("{} ranks, {} of {} elements", n, reduceOpName(op), elems));
  const Topology topology{n, 1, {}};
  RanksInMemory ranks(
      {.kind = Collective::kAllReduce, .dtype = dtype, .op = op, .numElems = static_cast<std::int64_t>(elems)},
      Algorithm::kTree, topology);
  const std::size_t elemBytes = elementBytes(dtype);
  for (Rank rank = 0; rank < n; ++rank) {
    ranks.inputs.push_back({Bytes(elems * elemBytes)});
    fillRandom(random, dtype, ranks.inputs.back()[0]);
    ranks.outputs.push_back({Bytes(elems * elemBytes)});
  }
  Bytes expected(elems * elemBytes);
  for (std::size_t i = 0; i < elems; ++i) {
    std::vector<const std::byte*> sources;
    for (const auto& inputs : ranks.inputs) {
      sources.push_back(inputs[0].data() + i * elemBytes);
    }
    testing::reduceElement(dtype, op, sources, expected.data() + i * elemBytes);
  }
  ranks.isInPlace = random.chance(50);
  ranks.run();
  for (Rank rank = 0; rank < n; ++rank) {
    EXPECT_EQ((ranks.isInPlace ? ranks.inputs : ranks.outputs)[static_cast<std::size_t>(rank)][0], expected) << rank;
  }
}

class TreeAllReduce : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(TreeAllReduce, GivesTheBitsOfASumInRankOrderEverywhere) {
  SCOPED_TRACE(fmt::format("seed {}", GetParam()));
  Random random(GetParam());
  const int n = static_cast<int>(random.between(1, 70));
  const auto elems = static_cast<std::size_t>(random.between(0, 20));
  const DType dtypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt32};
  const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax};
  const DType dtype = dtypes[random.between(0, 3)];
  expectSumInRankOrder(random, n, elems, dtype, ops[random.between(0, 2)]);
}

INSTANTIATE_TEST_SUITE_P(Seeds, TreeAllReduce, ::testing::Range(std::uint64_t{1}, std::uint64_t{121}));

TEST(TreeAllReduceOfMany, GivesThemOnThreeLevels) {
  Random random(1);
  expectSumInRankOrder(random, 1060, 2, DType::kFloat32, ReduceOp::kSum);
}

TEST(TreeAllReduceOfMany, NeedsOneLinkOfMostRanksAndOneLessThanRanksInAll) {
  const Topology topology{1024, 1, {}};
  const CollectiveCall call{
      .kind = Collective::kAllReduce, .dtype = DType::kFloat32, .op = ReduceOp::kSum, .numElems = 1};
  std::set<std::pair<Rank, Rank>> links;
  std::size_t mostOfOneRank = 0;
  for (Rank rank = 0; rank < topology.worldSize; ++rank) {
    std::set<Rank> peers;
    const Program program = programOf(call, Algorithm::kTree, rank, topology);
    EXPECT_EQ(program.stages.size(), 4u);
    for (const Stage& stage : program.stages) {
      for (const auto* edges : {&stage.plan.sends, &stage.plan.receives}) {
        for (const PlanEdge& edge : *edges) {
          peers.insert(edge.peer);
          links.emplace(std::min(rank, edge.peer), std::max(rank, edge.peer));
        }
      }
    }
    mostOfOneRank = std::max(mostOfOneRank, peers.size());
  }
  EXPECT_EQ(links.size(), 1023u);
  EXPECT_EQ(mostOfOneRank, 62u);
}

}  // namespace
}  // namespace shardwire::internal
