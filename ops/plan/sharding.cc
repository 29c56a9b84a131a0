// How a dimension is cut, in these words: a rank's share of one tensor dimension is an ordered list of SPANS, each a
// range of global indices. The local index space is the concatenation of the spans. The list starts as one span, the
// whole extent. Each placement, left to right over the mesh dimensions, cuts the local index space of the list: Shard
// keeps one CHUNK of the space, _StridedShard keeps one chunk of each of splitFactor chunks. A share is then the cross
// product of the spans of its dimensions.
//
// The splitFactor of a _StridedShard may equal the number of shards that the mesh dimensions to the right make of the
// same tensor dimension. Such placements stand for another order: FSDP2 over tensor parallelism, where the right
// dimensions cut first. On even extents, and on most uneven extents, both readings give the same shares. Where the
// shares differ, torch reads such placements one way and FSDP2 lays out its shards the other way, so the placements are
// refused.
#include "ops/plan/sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "ops/plan/hash.h"

namespace shardwire::internal {

namespace {

struct Span {
  std::int64_t start;
  std::int64_t length;
};
using Spans = std::vector<Span>;

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

// Piece `index` of [0, extent) in k pieces, as torch.chunk cuts: every piece has ceil(extent / k) elements, except the
// last pieces, which may be short or empty.
Range chunkOf(std::int64_t extent, std::int64_t k, std::int64_t index) {
  const std::int64_t chunk = extent / k + (extent % k != 0 ? 1 : 0);
  // index * chunk may not fit when most chunks are empty.
  const bool isPastEnd = chunk == 0 || index >= (extent + chunk - 1) / chunk;
  const std::int64_t begin = isPastEnd ? extent : index * chunk;
  return {begin, begin + std::min(chunk, extent - begin)};
}

std::int64_t totalLength(const Spans& spans) {
  std::int64_t total = 0;
  for (const Span& span : spans) {
    total += span.length;
  }
  return total;
}

// Appends the spans of local range [range.begin, range.end) of `spans`; touching spans become one.
void appendRange(const Spans& spans, Range range, Spans& out) {
  std::int64_t position = 0;
  for (const Span& span : spans) {
    const std::int64_t begin = std::max(range.begin, position);
    const std::int64_t end = std::min(range.end, position + span.length);
    if (begin < end) {
      const Span piece{span.start + (begin - position), end - begin};
      if (!out.empty() && out.back().start + out.back().length == piece.start) {
        out.back().length += piece.length;
      } else {
        out.push_back(piece);
      }
    }
    position += span.length;
  }
}

Spans shard(const Spans& spans, std::int64_t k, std::int64_t index) {
  Spans out;
  appendRange(spans, chunkOf(totalLength(spans), k, index), out);
  return out;
}

Spans stridedShard(const Spans& spans, std::int64_t splitFactor, std::int64_t k, std::int64_t index) {
  Spans out;
  const std::int64_t total = totalLength(spans);
  for (std::int64_t piece = 0; piece < std::min(splitFactor, total); ++piece) {
    const Range outer = chunkOf(total, splitFactor, piece);
    const Range inner = chunkOf(outer.end - outer.begin, k, index);
    appendRange(spans, {outer.begin + inner.begin, outer.begin + inner.end}, out);
  }
  return out;
}

bool isShard(const Placement& placement) {
  return placement.kind == PlacementKind::kShard || placement.kind == PlacementKind::kStridedShard;
}

Spans cut(const Spans& spans, const Placement& placement, std::int64_t k, std::int64_t index) {
  return placement.kind == PlacementKind::kShard ? shard(spans, k, index)
                                                 : stridedShard(spans, placement.splitFactor, k, index);
}

// Coordinates of position `index` in the row-major mesh.
Dims coordinatesOf(const Dims& meshShape, std::int64_t index) {
  Dims coordinates = meshShape;
  for (int m = meshShape.size() - 1; m >= 0; --m) {
    coordinates[m] = index % meshShape[m];
    index /= meshShape[m];
  }
  return coordinates;
}

std::uint64_t replicaClassOf(const Layout& layout, const Dims& coordinates) {
  Hasher hasher;
  hasher.add(layout.meshShape);
  for (const Rank rank : layout.mesh) {
    hasher.add(static_cast<std::uint64_t>(rank));
  }
  hasher.add(layout.shape);
  for (int m = 0; m < coordinates.size(); ++m) {
    const Placement& placement = layout.placements[static_cast<std::size_t>(m)];
    const bool isSharded = isShard(placement);
    const bool isPartial = placement.kind == PlacementKind::kPartial;
    // Only the fields that are meaningful for the kind; the other fields may hold anything.
    hasher.add(static_cast<std::uint64_t>(placement.kind));
    hasher.add(isSharded ? static_cast<std::uint64_t>(placement.dim) : 0);
    hasher.add(placement.kind == PlacementKind::kStridedShard ? static_cast<std::uint64_t>(placement.splitFactor) : 0);
    hasher.add(isPartial ? static_cast<std::uint64_t>(placement.reduction) : 0);
    hasher.add(isPartial ? static_cast<std::uint64_t>(coordinates[m]) : 0);
  }
  const std::uint64_t value = hasher.value();
  return value == 0 ? 1 : value;
}

// Every combination of one span per dimension, last dimension fastest.
void crossProduct(const std::vector<Spans>& spansOfDim, LocalShare& share) {
  const int numDims = static_cast<int>(spansOfDim.size());
  std::vector<std::size_t> chosen(spansOfDim.size(), 0);
  PlacedSlice placed{{Dims::filled(numDims, 0), Dims::filled(numDims, 0)}, Dims::filled(numDims, 0)};
  for (int d = 0; d < numDims; ++d) {
    if (spansOfDim[static_cast<std::size_t>(d)].empty()) {
      return;
    }
  }
  while (true) {
    for (int d = 0; d < numDims; ++d) {
      const Span& span = spansOfDim[static_cast<std::size_t>(d)][chosen[static_cast<std::size_t>(d)]];
      placed.slice.offset[d] = span.start;
      placed.slice.shape[d] = span.length;
    }
    share.slices.push_back(placed);
    int d = numDims - 1;
    for (; d >= 0; --d) {
      const Spans& spans = spansOfDim[static_cast<std::size_t>(d)];
      std::size_t& at = chosen[static_cast<std::size_t>(d)];
      placed.localOffset[d] += spans[at].length;
      if (++at < spans.size()) {
        break;
      }
      at = 0;
      placed.localOffset[d] = 0;
    }
    if (d < 0) {
      return;
    }
  }
}

Status invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

Status checkMesh(const Layout& layout) {
  std::size_t size = 1;
  for (int m = 0; m < layout.meshShape.size(); ++m) {
    const std::int64_t extent = layout.meshShape[m];
    if (extent < 1) {
      return invalid(fmt::format(
          "layout: mesh shape {} has extent {} in dimension {}: every mesh dimension holds at least one rank",
          toString(layout.meshShape), extent, m));
    }
    if (static_cast<std::uint64_t>(extent) > layout.mesh.size() / size) {
      size = 0;
      break;
    }
    size *= static_cast<std::size_t>(extent);
  }
  if (size != layout.mesh.size()) {
    return invalid(fmt::format(
        "layout: mesh shape {} does not hold the {} ranks given: list exactly one rank per mesh position, row-major",
        toString(layout.meshShape), layout.mesh.size()));
  }
  std::unordered_set<Rank> seen;
  for (const Rank rank : layout.mesh) {
    if (rank < 0) {
      return invalid(fmt::format("layout: rank {} in the mesh is negative: give ranks of the group", rank));
    }
    if (!seen.insert(rank).second) {
      return invalid(fmt::format("layout: rank {} is in the mesh twice: each rank has one position", rank));
    }
  }
  return Status::ok();
}

Status checkPlacement(const Layout& layout, int meshDim, const Placement& placement) {
  switch (placement.kind) {
    case PlacementKind::kReplicate:
      return Status::ok();
    case PlacementKind::kShard:
    case PlacementKind::kStridedShard:
      if (placement.dim < 0 || placement.dim >= layout.shape.size()) {
        return invalid(fmt::format(
            "layout: placement {} shards tensor dimension {}, but shape {} has {} dimensions, counted from 0", meshDim,
            placement.dim, toString(layout.shape), layout.shape.size()));
      }
      if (placement.kind == PlacementKind::kStridedShard && placement.splitFactor < 1) {
        return invalid(
            fmt::format("layout: placement {} is a _StridedShard with split factor {}: it must be at least 1", meshDim,
                        placement.splitFactor));
      }
      return Status::ok();
    case PlacementKind::kPartial:
      if (placement.reduction == ReduceOp::kNone) {
        return invalid(
            fmt::format("layout: placement {} is Partial without a reduction: name one, such as sum", meshDim));
      }
      return Status::ok();
  }
  return invalid(fmt::format("layout: placement {} is of unknown kind {}", meshDim, static_cast<int>(placement.kind)));
}

// The mesh dimensions that shard tensor dimension `dim`, in the order in which FSDP2 would cut: each matching
// _StridedShard comes after all dimensions to the right. Empty when a split factor does not match, or when the order is
// the usual one.
std::vector<int> rightFirstOrder(const Layout& layout, int dim) {
  std::vector<int> order;
  std::int64_t numShardsRight = 1;
  bool isUsual = true;
  for (int m = layout.meshShape.size() - 1; m >= 0; --m) {
    const Placement& placement = layout.placements[static_cast<std::size_t>(m)];
    if (!isShard(placement) || placement.dim != dim) {
      continue;
    }
    if (placement.kind == PlacementKind::kShard || placement.splitFactor == 1) {
      order.insert(order.begin(), m);
    } else if (placement.splitFactor == numShardsRight) {
      order.push_back(m);
      isUsual = false;
    } else {
      return {};
    }
    numShardsRight *= layout.meshShape[m];
  }
  return isUsual ? std::vector<int>{} : order;
}

bool sameSpans(const Spans& a, const Spans& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Span& x, const Span& y) { return x.start == y.start && x.length == y.length; });
}

// Whether both readings of the placements give every rank the same spans of tensor dimension `dim`.
bool readingsAgree(const Layout& layout, int dim) {
  const std::vector<int> order = rightFirstOrder(layout, dim);
  std::int64_t numShards = 1;
  for (const int m : order) {
    numShards *= layout.meshShape[m];
  }
  const std::int64_t extent = layout.shape[dim];
  if (order.empty() || extent % numShards == 0) {
    return true;
  }
  // One coordinate tuple of the dimensions in `order` after the other.
  std::vector<std::int64_t> coordinates(static_cast<std::size_t>(layout.meshShape.size()), 0);
  for (std::int64_t tuple = 0; tuple < numShards; ++tuple) {
    std::int64_t rest = tuple;
    Spans rightFirst{{0, extent}};
    for (const int m : order) {
      coordinates[static_cast<std::size_t>(m)] = rest % layout.meshShape[m];
      rest /= layout.meshShape[m];
      rightFirst = shard(rightFirst, layout.meshShape[m], coordinates[static_cast<std::size_t>(m)]);
    }
    Spans leftFirst{{0, extent}};
    for (int m = 0; m < layout.meshShape.size(); ++m) {
      const Placement& placement = layout.placements[static_cast<std::size_t>(m)];
      if (isShard(placement) && placement.dim == dim) {
        leftFirst = cut(leftFirst, placement, layout.meshShape[m], coordinates[static_cast<std::size_t>(m)]);
      }
    }
    if (!sameSpans(leftFirst, rightFirst)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Status checkLayout(const Layout& layout) {
  for (int d = 0; d < layout.shape.size(); ++d) {
    if (layout.shape[d] < 0) {
      return invalid(fmt::format("layout: shape {} has a negative extent in dimension {}", toString(layout.shape), d));
    }
  }
  SW_RETURN_IF_ERROR(checkMesh(layout));
  if (static_cast<int>(layout.placements.size()) != layout.meshShape.size()) {
    return invalid(fmt::format("layout: {} placements for a mesh of shape {}: give one per mesh dimension",
                               layout.placements.size(), toString(layout.meshShape)));
  }
  ReduceOp pending = ReduceOp::kNone;
  for (int m = 0; m < layout.meshShape.size(); ++m) {
    const Placement& placement = layout.placements[static_cast<std::size_t>(m)];
    SW_RETURN_IF_ERROR(checkPlacement(layout, m, placement));
    if (placement.kind != PlacementKind::kPartial) {
      continue;
    }
    if (pending != ReduceOp::kNone && pending != placement.reduction) {
      return invalid(fmt::format(
          "layout: placements are Partial({}) and Partial({}): one tensor can have only one pending reduction",
          reduceOpName(pending), reduceOpName(placement.reduction)));
    }
    pending = placement.reduction;
  }
  for (int d = 0; d < layout.shape.size(); ++d) {
    if (!readingsAgree(layout, d)) {
      return invalid(
          fmt::format("layout: _StridedShard of tensor dimension {} of extent {} is ambiguous: cut by the placements "
                      "from left to right and cut by the right mesh dimensions first (as FSDP2 over tensor parallelism "
                      "does) differ for this uneven extent; pad the dimension to a multiple of its number of shards",
                      d, layout.shape[d]));
    }
  }
  return Status::ok();
}

ReduceOp pendingReduction(const Layout& layout) {
  for (const Placement& placement : layout.placements) {
    if (placement.kind == PlacementKind::kPartial) {
      return placement.reduction;
    }
  }
  return ReduceOp::kNone;
}

std::optional<LocalShare> shareOf(const Layout& layout, Rank rank) {
  const auto position = std::find(layout.mesh.begin(), layout.mesh.end(), rank);
  if (position == layout.mesh.end()) {
    return std::nullopt;
  }
  const Dims coordinates = coordinatesOf(layout.meshShape, position - layout.mesh.begin());
  std::vector<Spans> spansOfDim;
  for (const std::int64_t extent : layout.shape) {
    spansOfDim.push_back(extent > 0 ? Spans{{0, extent}} : Spans{});
  }
  for (int m = 0; m < coordinates.size(); ++m) {
    const Placement& placement = layout.placements[static_cast<std::size_t>(m)];
    if (isShard(placement)) {
      Spans& spans = spansOfDim[static_cast<std::size_t>(placement.dim)];
      spans = cut(spans, placement, layout.meshShape[m], coordinates[m]);
    }
  }
  LocalShare share;
  for (const Spans& spans : spansOfDim) {
    share.localShape.push_back(totalLength(spans));
  }
  crossProduct(spansOfDim, share);
  share.replicaClass = replicaClassOf(layout, coordinates);
  return share;
}

}  // namespace shardwire::internal
