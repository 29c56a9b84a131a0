// Most stages are written as a global spec, which redistribute() plans like any compiled op. Those of trees and
// barriers are written as plans by hand: there the algorithm names the partner, whatever the ranks hold.
#include "ops/collectives/stages.h"

#include <algorithm>

#include "ops/plan/redistribute.h"

namespace shardwire::internal {

LocalTensor flatPart(std::int64_t offset, std::int64_t numElems) {
  return {.tensor = 0, .localShape = {numElems}, .slices = {{.slice = {{offset}, {numElems}}, .localOffset = {0}}}};
}

LocalTensor flatAllBut(std::pair<std::int64_t, std::int64_t> part, std::int64_t numElems) {
  LocalTensor tensor{.tensor = 0, .localShape = {numElems}};
  if (part.first > 0) {
    tensor.slices.push_back({.slice = {{0}, {part.first}}, .localOffset = {0}});
  }
  if (part.second < numElems) {
    tensor.slices.push_back({.slice = {{part.second}, {numElems - part.second}}, .localOffset = {part.second}});
  }
  return tensor;
}

std::pair<std::int64_t, std::int64_t> chunkOf(const CollectiveCall& call, Rank rank, int worldSize) {
  const std::int64_t line = std::max<std::int64_t>(1, 64 / static_cast<std::int64_t>(elementBytes(call.dtype)));
  const std::int64_t lines = (call.numElems + line - 1) / line;
  const std::int64_t chunk = (lines + worldSize - 1) / worldSize * line;
  return {std::min(rank * chunk, call.numElems), std::min((rank + 1) * chunk, call.numElems)};
}

LocalTensor chunkPart(const CollectiveCall& call, Rank rank, int worldSize) {
  const auto [first, last] = chunkOf(call, rank, worldSize);
  return flatPart(first, last - first);
}

StageTensor chunkIn(StageTensor::From from, const CollectiveCall& call, Rank rank, int worldSize) {
  const auto [first, last] = chunkOf(call, rank, worldSize);
  return {from, 0, first, last - first};
}

StageTensor inputOf(std::int64_t numElems, std::int32_t index) {
  return {StageTensor::From::kInput, index, 0, numElems};
}

StageTensor outputOf(std::int64_t numElems, std::int32_t index) {
  return {StageTensor::From::kOutput, index, 0, numElems};
}

Plan planStage(const CollectiveCall& call, ReduceOp op, std::int64_t globalElems, Rank rank, int worldSize,
               const std::function<RankSpec(Rank)>& specOf, std::span<const std::int32_t> hosts) {
  GlobalSpec spec;
  spec.allowGaps = true;  // an empty tensor leaves nothing to cover, and that is no error here
  spec.tensors.push_back({.name = "", .shape = {globalElems}, .dtype = call.dtype, .reduction = op});
  for (Rank r = 0; r < worldSize; ++r) {
    spec.ranks.push_back(specOf(r));
  }
  Result<Plan> plan = redistribute(spec, rank, hosts);
  SW_CHECK(plan.isOk());
  return std::move(*plan);
}

Stage combineChunks(const CollectiveCall& call, Rank rank, int worldSize, const StageTensor& chunk) {
  Stage stage;
  stage.plan = planStage(call, call.op, call.numElems, rank, worldSize, [&](Rank r) {
    return RankSpec{.inputs = {flatPart(0, call.numElems)}, .outputs = {chunkPart(call, r, worldSize)}};
  });
  stage.inputs = {inputOf(call.numElems)};
  stage.outputs = {chunk};
  return stage;
}

Plan exchangeChunks(const CollectiveCall& call, Rank rank, int worldSize) {
  return planStage(call, ReduceOp::kNone, call.numElems, rank, worldSize, [&](Rank r) {
    const bool isReduce = call.kind == Collective::kReduce;
    RankSpec spec;
    if (!isReduce || r != call.root) {
      spec.inputs.push_back(chunkPart(call, r, worldSize));
    }
    if (call.kind == Collective::kAllReduce || isReduce == (r == call.root)) {
      spec.outputs.push_back(flatAllBut(chunkOf(call, r, worldSize), call.numElems));
    }
    return spec;
  });
}

Plan pairStage(const CollectiveCall& call, std::int64_t numElems, std::span<const Rank> to, Rank from, Rank rank,
               int worldSize) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(numElems) * elementBytes(call.dtype);
  const bool isEmpty = numElems == 0;
  Plan plan;
  plan.rank = rank;
  plan.worldSize = worldSize;
  if (!to.empty()) {
    plan.inputs.push_back({call.dtype, {numElems}});
  }
  for (const Rank peer : to) {
    const auto first = static_cast<std::uint32_t>(plan.sendItems.size());
    if (!isEmpty) {
      plan.sendItems.push_back({.input = 0, .slot = 0, .offset = {0}, .shape = {numElems}, .stagedDtype = call.dtype});
      plan.sends.push_back(
          {.peer = peer, .first = first, .count = 1, .numCopies = 1, .bytes = bytes, .numItems = 1, .inputs = {0}});
    }
  }
  if (from != kNobody) {
    plan.outputs.push_back({call.dtype, {numElems}});
    if (!isEmpty) {
      plan.moves.push_back({.output = 0, .offset = {0}, .shape = {numElems}, .sourceDtype = call.dtype});
      plan.sources.push_back({.rank = from, .input = 0, .slot = 0, .offset = {0}});
      plan.receives.push_back(
          {.peer = from, .first = 0, .count = 1, .numCopies = 1, .bytes = bytes, .numItems = 1, .inputs = {0}});
    }
  }
  plan.firstCombine = static_cast<std::uint32_t>(plan.moves.size());
  return plan;
}

Plan signalStage(std::span<const Rank> to, std::span<const Rank> from, Rank rank, int worldSize) {
  Plan plan;
  plan.rank = rank;
  plan.worldSize = worldSize;
  for (const Rank peer : to) {
    plan.sends.push_back({.peer = peer});
  }
  for (const Rank peer : from) {
    plan.receives.push_back({.peer = peer});
  }
  return plan;
}

}  // namespace shardwire::internal
