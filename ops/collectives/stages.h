// Building blocks of the families: stages written as what each rank has and wants, planned by redistribute().
#pragma once

#include <functional>
#include <utility>

#include "ops/collectives/collective.h"
#include "ops/plan/global_spec.h"
#include "shardwire/export.h"

namespace shardwire::internal {

// A flat local tensor that is [offset, offset + numElems) of the global one.
LocalTensor flatPart(std::int64_t offset, std::int64_t numElems);
// A flat local tensor of the global one's size, wanted but for [first, last).
LocalTensor flatAllBut(std::pair<std::int64_t, std::int64_t> part, std::int64_t numElems);

// [first, last) of `rank`'s chunk: even to within one cache line, the same cut on every rank. The last chunks may be
// empty.
SHARDWIRE_EXPORT std::pair<std::int64_t, std::int64_t> chunkOf(const CollectiveCall& call, Rank rank, int worldSize);

// The chunk as a part of the global tensor, and in a tensor of all chunks.
LocalTensor chunkPart(const CollectiveCall& call, Rank rank, int worldSize);
StageTensor chunkIn(StageTensor::From from, const CollectiveCall& call, Rank rank, int worldSize);

StageTensor inputOf(std::int64_t numElems, std::int32_t index = 0);
StageTensor outputOf(std::int64_t numElems, std::int32_t index = 0);

// The plan of one stage on `rank`: `specOf(r)` is what rank r has and wants of a global tensor of `globalElems`; op
// combines what overlaps; of several holders of the same the nearest by `hosts` supplies it.
Plan planStage(const CollectiveCall& call, ReduceOp op, std::int64_t globalElems, Rank rank, int worldSize,
               const std::function<RankSpec(Rank)>& specOf, std::span<const std::int32_t> hosts = {});

// The first half of a reduction by chunks: each rank combines its own chunk of all inputs, into `chunk`.
Stage combineChunks(const CollectiveCall& call, Rank rank, int worldSize, const StageTensor& chunk);
// The plan of the second half of an algorithm by chunks: the ranks that lack chunks get them from their owners.
Plan exchangeChunks(const CollectiveCall& call, Rank rank, int worldSize);

// Plans written by hand, where the partner is fixed by the algorithm and not by who has what.
inline constexpr Rank kNobody = -1;
// All of my input, of `numElems`, to `to`; all of my output from `from`.
Plan pairStage(const CollectiveCall& call, std::int64_t numElems, std::span<const Rank> to, Rank from, Rank rank,
               int worldSize);
// Messages of no bytes to and from these peers.
Plan signalStage(std::span<const Rank> to, std::span<const Rank> from, Rank rank, int worldSize);

}  // namespace shardwire::internal
