// Mesh + placements -> the boxes that a rank holds: DTensor's rules, in plain data. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shardwire/export.h"
#include "shardwire/op_spec.h"

namespace shardwire::internal {

enum class PlacementKind : unsigned char { kReplicate = 0, kShard = 1, kStridedShard = 2, kPartial = 3 };

struct Placement {
  PlacementKind kind = PlacementKind::kReplicate;
  int dim = 0;                           // kShard, kStridedShard
  std::int64_t splitFactor = 1;          // kStridedShard: how many pieces the dims to the right of it cut first
  ReduceOp reduction = ReduceOp::kNone;  // kPartial
  friend bool operator==(const Placement&, const Placement&) = default;
};

// A tensor laid out over a mesh of ranks. mesh holds the group ranks row-major over meshShape; placements has one entry
// per mesh dimension.
struct Layout {
  Dims meshShape;
  std::vector<Rank> mesh;
  std::vector<Placement> placements;
  Dims shape;  // global
};

// One rank's share: the local shape and where its boxes lie. numBoxes may be 0 (empty shard), 1, or more
// (_StridedShard).
struct LocalShare {
  Dims localShape;
  std::vector<PlacedSlice> slices;
  // Non-zero; equal for ranks whose values are equal by contract (replicas of one Partial addend, or of a plain value).
  std::uint64_t replicaClass = 0;
};

// kInvalidArgument for an impossible layout: dims out of range, mesh size, repeated ranks, two reductions, a split
// factor < 1; or that cannot be placed exactly: [_StridedShard, Shard] of one uneven dimension where torch's reading
// and FSDP2's own shards differ.
SHARDWIRE_EXPORT Status checkLayout(const Layout& layout);
// The reduction pending on the layout (of its kPartial placements), kNone when there is none.
SHARDWIRE_EXPORT ReduceOp pendingReduction(const Layout& layout);
// The share of `rank`; nullopt when `rank` is not in the mesh. Placements apply left to right over mesh dimensions.
// Shard splits the current extent as torch.chunk does: chunk = ceil(n / k), piece i = [i * chunk, min((i + 1) * chunk,
// n)). Precondition: checkLayout is ok.
SHARDWIRE_EXPORT std::optional<LocalShare> shareOf(const Layout& layout, Rank rank);

}  // namespace shardwire::internal
