// Layouts of tensors over meshes. First random layouts against lists of indices, then torch's rules for chunks, strided
// shards and FSDP over tensor parallelism, then classes of equal layouts, ranks outside the mesh, scalars and pending
// reductions, and at last refused layouts.
#include "ops/plan/sharding.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/support/random.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::Random;

Placement shard(int dim) {
  return {PlacementKind::kShard, dim};
}
Placement strided(int dim, std::int64_t splitFactor) {
  return {PlacementKind::kStridedShard, dim, splitFactor};
}
Placement partial(ReduceOp op) {
  return {PlacementKind::kPartial, 0, 1, op};
}
const Placement kReplicated{};

std::vector<Rank> ranksUpTo(std::int64_t count) {
  std::vector<Rank> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

using Indices = std::vector<std::int64_t>;

// torch.chunk on a list, padded with empty pieces to k.
std::vector<Indices> chunk(const Indices& indices, std::size_t k) {
  std::vector<Indices> pieces(k);
  const std::size_t size = (indices.size() + k - 1) / k;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    pieces[i / size].push_back(indices[i]);
  }
  return pieces;
}

// The definitions of torch 2.13, on actual lists of indices.
Indices splitByLists(Indices indices, const Placement& placement, std::int64_t k, std::int64_t coordinate) {
  const auto index = static_cast<std::size_t>(coordinate);
  const auto pieces = static_cast<std::size_t>(k);
  if (placement.kind == PlacementKind::kShard) {
    return chunk(indices, pieces)[index];
  }
  Indices kept;
  for (const Indices& outer : chunk(indices, static_cast<std::size_t>(placement.splitFactor))) {
    const Indices inner = chunk(outer, pieces)[index];
    kept.insert(kept.end(), inner.begin(), inner.end());
  }
  return kept;
}

std::vector<Indices> indicesByLists(const Layout& layout, const Dims& coordinates) {
  std::vector<Indices> lists;
  for (const std::int64_t extent : layout.shape) {
    Indices& all = lists.emplace_back(static_cast<std::size_t>(extent));
    std::iota(all.begin(), all.end(), std::int64_t{0});
  }
  for (int m = 0; m < coordinates.size(); ++m) {
    const Placement& placement = layout.placements[static_cast<std::size_t>(m)];
    if (placement.kind == PlacementKind::kShard || placement.kind == PlacementKind::kStridedShard) {
      Indices& list = lists[static_cast<std::size_t>(placement.dim)];
      list = splitByLists(list, placement, layout.meshShape[m], coordinates[m]);
    }
  }
  return lists;
}

// Checks that the share puts global index (lists[0][i0], lists[1][i1], ...) at local (i0, i1, ...), each local element
// once.
void expectShare(const LocalShare& share, const std::vector<Indices>& lists, const std::string& what) {
  std::vector<std::int64_t> owner(static_cast<std::size_t>(numElements(share.localShape)), 0);
  for (std::size_t d = 0; d < lists.size(); ++d) {
    ASSERT_EQ(share.localShape[static_cast<int>(d)], std::ssize(lists[d])) << what;
  }
  for (const PlacedSlice& placed : share.slices) {
    std::int64_t count = numElements(placed.slice.shape);
    ASSERT_GT(count, 0) << what;
    for (std::int64_t flat = 0; flat < count; ++flat) {
      std::int64_t rest = flat;
      std::int64_t local = 0;
      std::int64_t stride = 1;
      for (int d = placed.slice.shape.size() - 1; d >= 0; --d) {
        const std::int64_t within = rest % placed.slice.shape[d];
        rest /= placed.slice.shape[d];
        const std::int64_t at = placed.localOffset[d] + within;
        ASSERT_LT(at, share.localShape[d]) << what;
        ASSERT_EQ(placed.slice.offset[d] + within, lists[static_cast<std::size_t>(d)][static_cast<std::size_t>(at)])
            << what;
        local += at * stride;
        stride *= share.localShape[d];
      }
      ++owner[static_cast<std::size_t>(local)];
    }
  }
  EXPECT_EQ(std::count(owner.begin(), owner.end(), 1), std::ssize(owner)) << what;
}

std::string describe(const Layout& layout) {
  std::string text = "mesh " + toString(layout.meshShape) + " shape " + toString(layout.shape);
  for (const Placement& placement : layout.placements) {
    text += " " + std::to_string(static_cast<int>(placement.kind)) + "(" + std::to_string(placement.dim) + "," +
            std::to_string(placement.splitFactor) + ")";
  }
  return text;
}

TEST(Sharding, MatchesListsOfIndicesOnRandomLayouts) {
  int numAmbiguous = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Random random(seed);
    Layout layout;
    for (std::int64_t d = random.between(1, 3); d > 0; --d) {
      layout.shape.push_back(random.between(0, 13));
    }
    for (std::int64_t m = random.between(1, 4); m > 0; --m) {
      layout.meshShape.push_back(random.between(1, 4));
      const int dim = static_cast<int>(random.between(0, layout.shape.size() - 1));
      const Placement choices[] = {kReplicated, shard(dim), shard(dim), strided(dim, random.between(1, 5)),
                                   partial(ReduceOp::kSum)};
      layout.placements.push_back(choices[random.between(0, 4)]);
    }
    layout.mesh = ranksUpTo(numElements(layout.meshShape));
    random.shuffle(layout.mesh);
    if (const Status status = checkLayout(layout); !status.isOk()) {
      ASSERT_NE(status.message().find("ambiguous"), std::string::npos) << status.message();
      ++numAmbiguous;
      continue;
    }
    for (std::size_t position = 0; position < layout.mesh.size(); ++position) {
      Dims coordinates = layout.meshShape;
      std::size_t rest = position;
      for (int m = coordinates.size() - 1; m >= 0; --m) {
        coordinates[m] = static_cast<std::int64_t>(rest) % layout.meshShape[m];
        rest /= static_cast<std::size_t>(layout.meshShape[m]);
      }
      const std::optional<LocalShare> share = shareOf(layout, layout.mesh[position]);
      ASSERT_TRUE(share.has_value());
      expectShare(*share, indicesByLists(layout, coordinates), "seed " + std::to_string(seed) + " " + describe(layout));
    }
  }
  EXPECT_LT(numAmbiguous, 100);
}

TEST(Sharding, CutsLikeTorchChunk) {
  // 10 rows on 4 ranks: 3, 3, 3, 1; 5 rows on 4 ranks: 2, 2, 1, 0.
  const Layout ten{{4}, ranksUpTo(4), {shard(0)}, {10, 2}};
  const std::int64_t sizes[] = {3, 3, 3, 1};
  for (Rank rank = 0; rank < 4; ++rank) {
    const LocalShare share = shareOf(ten, rank).value();
    EXPECT_EQ(share.localShape, (Dims{sizes[rank], 2}));
    ASSERT_EQ(share.slices.size(), 1U);
    EXPECT_EQ(share.slices[0], (PlacedSlice{{{rank * 3, 0}, {sizes[rank], 2}}, {0, 0}}));
  }
  const Layout five{{4}, ranksUpTo(4), {shard(0)}, {5}};
  const LocalShare last = shareOf(five, 3).value();
  EXPECT_EQ(last.localShape, Dims{0});
  EXPECT_TRUE(last.slices.empty());
}

// The example in torch's own comment: nine elements, split factor 2, four ranks.
TEST(Sharding, CutsStridedShardsLikeTorch) {
  const Layout layout{{4}, ranksUpTo(4), {strided(0, 2)}, {9}};
  const std::vector<Indices> expected{{0, 1, 5}, {2, 3, 6}, {4, 7}, {8}};
  for (Rank rank = 0; rank < 4; ++rank) {
    expectShare(shareOf(layout, rank).value(), {expected[static_cast<std::size_t>(rank)]},
                "rank " + std::to_string(rank));
  }
  EXPECT_EQ(shareOf(layout, 0)->slices.size(), 2U);
}

// FSDP2 over tensor parallelism: the tensor is cut by the right mesh dimension first, then each piece by the left one.
TEST(Sharding, PlacesFsdpOverTensorParallelismOrRefuses) {
  int numUneven = 0;
  for (std::int64_t fsdp = 1; fsdp <= 4; ++fsdp) {
    for (std::int64_t tp = 1; tp <= 4; ++tp) {
      for (std::int64_t extent = 0; extent <= 70; ++extent) {
        const Layout layout{{fsdp, tp}, ranksUpTo(fsdp * tp), {strided(0, tp), shard(0)}, {extent}};
        const bool isAccepted = checkLayout(layout).isOk();
        numUneven += isAccepted && extent % tp != 0 ? 1 : 0;
        Indices all(static_cast<std::size_t>(extent));
        std::iota(all.begin(), all.end(), std::int64_t{0});
        bool readingsAgree = true;
        for (std::int64_t left = 0; left < fsdp; ++left) {
          for (std::int64_t right = 0; right < tp; ++right) {
            const Indices expected = splitByLists(splitByLists(all, shard(0), tp, right), shard(0), fsdp, left);
            readingsAgree = readingsAgree && indicesByLists(layout, {left, right})[0] == expected;
            if (isAccepted) {
              const LocalShare share = shareOf(layout, static_cast<Rank>(left * tp + right)).value();
              expectShare(share, {expected}, describe(layout));
              EXPECT_LE(share.slices.size(), 1U) << describe(layout);
            }
          }
        }
        EXPECT_EQ(isAccepted, readingsAgree) << describe(layout);
        EXPECT_TRUE(isAccepted || extent % tp != 0) << describe(layout);
      }
    }
  }
  EXPECT_GT(numUneven, 200);
}

// Expert parallelism between the two: three cuts of one dimension, the right cuts first.
TEST(Sharding, PlacesThreeCutsRightToLeft) {
  const Layout layout{{2, 3, 2}, ranksUpTo(12), {strided(0, 6), strided(0, 2), shard(0)}, {24}};
  ASSERT_TRUE(checkLayout(layout).isOk());
  Indices all(24);
  std::iota(all.begin(), all.end(), std::int64_t{0});
  for (Rank rank = 0; rank < 12; ++rank) {
    const Indices expected = splitByLists(
        splitByLists(splitByLists(all, shard(0), 2, rank % 2), shard(0), 3, rank / 2 % 3), shard(0), 2, rank / 6);
    expectShare(shareOf(layout, rank).value(), {expected}, "rank " + std::to_string(rank));
  }
}

TEST(Sharding, SharesOneClassExceptAcrossPartials) {
  const Layout layout{{2, 2, 2}, ranksUpTo(8), {partial(ReduceOp::kSum), shard(0), kReplicated}, {8, 8}};
  std::set<std::uint64_t> classes;
  for (Rank rank = 0; rank < 8; ++rank) {
    const std::uint64_t replicaClass = shareOf(layout, rank)->replicaClass;
    EXPECT_NE(replicaClass, 0U);
    EXPECT_EQ(replicaClass, shareOf(layout, rank < 4 ? 0 : 4)->replicaClass);
    classes.insert(replicaClass);
  }
  EXPECT_EQ(classes.size(), 2U);
}

TEST(Sharding, GivesDifferentLayoutsDifferentClasses) {
  const Layout base{{2, 2}, ranksUpTo(4), {shard(0), kReplicated}, {8, 8}};
  std::vector<Layout> others(6, base);
  others[0].mesh = {0, 2, 1, 3};
  others[1].meshShape = {4, 1};
  others[2].placements = {shard(1), kReplicated};
  others[3].shape = {8, 9};
  others[4].placements = {strided(0, 2), kReplicated};
  others[5].placements = {strided(0, 3), kReplicated};
  std::set<std::uint64_t> classes{shareOf(base, 0)->replicaClass};
  for (const Layout& other : others) {
    EXPECT_TRUE(classes.insert(shareOf(other, 0)->replicaClass).second) << describe(other);
  }
  // Fields unused by a kind have no effect.
  Layout same = base;
  same.placements[1] = {PlacementKind::kReplicate, 1, 5, ReduceOp::kMax};
  EXPECT_EQ(shareOf(same, 0)->replicaClass, shareOf(base, 0)->replicaClass);
}

TEST(Sharding, LeavesOutRanksOutsideTheMesh) {
  const Layout layout{{2}, {1, 3}, {shard(0)}, {4}};
  EXPECT_FALSE(shareOf(layout, 0).has_value());
  EXPECT_EQ(shareOf(layout, 3)->slices[0].slice, (Slice{{2}, {2}}));
}

TEST(Sharding, PlacesScalarsAndMeshesWithoutDimensions) {
  const Layout scalar{{2}, {0, 1}, {kReplicated}, {}};
  EXPECT_EQ(shareOf(scalar, 1)->slices.size(), 1U);
  EXPECT_EQ(shareOf(scalar, 1)->localShape, Dims{});
  const Layout single{{}, {5}, {}, {3}};
  ASSERT_TRUE(checkLayout(single).isOk());
  EXPECT_EQ(shareOf(single, 5)->localShape, Dims{3});
}

TEST(Sharding, KnowsThePendingReduction) {
  EXPECT_EQ(pendingReduction({{2}, {0, 1}, {shard(0)}, {4}}), ReduceOp::kNone);
  EXPECT_EQ(pendingReduction({{2, 1}, {0, 1}, {shard(0), partial(ReduceOp::kMax)}, {4}}), ReduceOp::kMax);
}

TEST(Sharding, RefusesLayoutsThatCannotBe) {
  const Layout good{{2, 2}, ranksUpTo(4), {shard(0), partial(ReduceOp::kSum)}, {8, 8}};
  ASSERT_TRUE(checkLayout(good).isOk());
  const auto expectRefused = [&good](auto change, const char* text) {
    Layout layout = good;
    change(layout);
    const Status status = checkLayout(layout);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  expectRefused([](Layout& l) { l.shape = {8, -1}; }, "shape [8, -1] has a negative extent in dimension 1");
  expectRefused([](Layout& l) { l.meshShape = {4, 0}; }, "has extent 0 in dimension 1");
  expectRefused([](Layout& l) { l.meshShape = {2, 3}; }, "does not hold the 4 ranks given");
  expectRefused([](Layout& l) { l.meshShape = {std::int64_t{1} << 62, 4}; }, "does not hold the 4 ranks given");
  expectRefused([](Layout& l) { l.mesh[2] = -3; }, "rank -3 in the mesh is negative");
  expectRefused([](Layout& l) { l.mesh[2] = 1; }, "rank 1 is in the mesh twice");
  expectRefused([](Layout& l) { l.placements.pop_back(); }, "1 placements for a mesh of shape [2, 2]");
  expectRefused([](Layout& l) { l.placements[0].dim = 2; },
                "shards tensor dimension 2, but shape [8, 8] has 2 dimensions");
  expectRefused([](Layout& l) { l.placements[0].dim = -1; }, "shards tensor dimension -1");
  expectRefused([](Layout& l) { l.placements[0] = strided(0, 0); }, "split factor 0");
  expectRefused([](Layout& l) { l.placements[1].reduction = ReduceOp::kNone; }, "Partial without a reduction");
  expectRefused([](Layout& l) { l.placements[0] = partial(ReduceOp::kMax); }, "Partial(max) and Partial(sum)");
  expectRefused(
      [](Layout& l) {
        l.meshShape = {3, 2};
        l.mesh = ranksUpTo(6);
        l.placements = {strided(0, 2), shard(0)};
        l.shape = {7};
      },
      "_StridedShard of tensor dimension 0 of extent 7 is ambiguous");
  expectRefused([](Layout& l) { l.placements[0].kind = static_cast<PlacementKind>(9); }, "unknown kind 9");
}

}  // namespace
}  // namespace shardwire::internal
