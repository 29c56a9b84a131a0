#include "ops/collectives/collective_plans.h"

#include <algorithm>
#include <utility>

#include "ops/plan/hash.h"
#include "ops/plan/redistribute.h"

namespace shardwire::internal {

namespace {

LocalTensor flat(std::int64_t offset, std::int64_t numElems) {
  return {.tensor = 0, .localShape = {numElems}, .slices = {{.slice = {{offset}, {numElems}}, .localOffset = {0}}}};
}

// All of the tensor but my chunk, in place.
LocalTensor allBut(std::pair<std::int64_t, std::int64_t> chunk, std::int64_t numElems) {
  LocalTensor tensor{.tensor = 0, .localShape = {numElems}};
  if (chunk.first > 0) {
    tensor.slices.push_back({.slice = {{0}, {chunk.first}}, .localOffset = {0}});
  }
  if (chunk.second < numElems) {
    tensor.slices.push_back({.slice = {{chunk.second}, {numElems - chunk.second}}, .localOffset = {chunk.second}});
  }
  return tensor;
}

RankSpec specOf(const CollectiveKey& key, Rank rank, int worldSize) {
  const std::int64_t n = key.numElems;
  const bool isRoot = rank == key.root;
  RankSpec spec;
  switch (key.kind) {
    case Collective::kBroadcast:
      (isRoot ? spec.inputs : spec.outputs).push_back(flat(0, n));
      break;
    case Collective::kReduce:
      spec.inputs.push_back(flat(0, n));
      if (isRoot) {
        spec.outputs.push_back(flat(0, n));
      }
      break;
    case Collective::kAllReduce:
      spec.inputs.push_back(flat(0, n));
      spec.outputs.push_back(flat(0, n));
      break;
    case Collective::kReduceChunks: {
      const auto [first, last] = chunkOf(key, rank, worldSize);
      spec.inputs.push_back(flat(0, n));
      spec.outputs.push_back(flat(first, last - first));
      break;
    }
    case Collective::kGatherChunks: {
      const auto chunk = chunkOf(key, rank, worldSize);
      spec.inputs.push_back(flat(chunk.first, chunk.second - chunk.first));
      spec.outputs.push_back(allBut(chunk, n));
      break;
    }
    case Collective::kAllGather:
    case Collective::kGather:
      spec.inputs.push_back(flat(rank * n, n));
      for (Rank from = 0; from < worldSize && (key.kind == Collective::kAllGather || isRoot); ++from) {
        spec.outputs.push_back(flat(from * n, n));
      }
      break;
    case Collective::kScatter:
    case Collective::kReduceScatter:
      for (Rank to = 0; to < worldSize && (key.kind == Collective::kReduceScatter || isRoot); ++to) {
        spec.inputs.push_back(flat(to * n, n));
      }
      spec.outputs.push_back(flat(rank * n, n));
      break;
  }
  return spec;
}

}  // namespace

std::uint64_t fingerprintOf(const CollectiveKey& key) {
  Hasher hash;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(key.kind), static_cast<std::uint64_t>(key.dtype), static_cast<std::uint64_t>(key.op),
        static_cast<std::uint64_t>(key.root), static_cast<std::uint64_t>(key.numElems)}) {
    hash.add(part);
  }
  return hash.value();
}

std::pair<std::int64_t, std::int64_t> chunkOf(const CollectiveKey& key, Rank rank, int worldSize) {
  const std::int64_t line = std::max<std::int64_t>(1, 64 / static_cast<std::int64_t>(elementBytes(key.dtype)));
  const std::int64_t lines = (key.numElems + line - 1) / line;
  const std::int64_t chunk = (lines + worldSize - 1) / worldSize * line;
  return {std::min(rank * chunk, key.numElems), std::min((rank + 1) * chunk, key.numElems)};
}

Plan collectivePlan(const CollectiveKey& key, Rank rank, int worldSize) {
  const bool isList = key.kind == Collective::kAllGather || key.kind == Collective::kGather || key.kind == Collective::kScatter ||
                      key.kind == Collective::kReduceScatter;
  GlobalSpec spec;
  spec.allowGaps = true;  // an empty tensor leaves nothing to cover, and that is no error here
  spec.tensors.push_back(
      {.name = "", .shape = {isList ? key.numElems * worldSize : key.numElems}, .dtype = key.dtype, .reduction = key.op});
  for (Rank r = 0; r < worldSize; ++r) {
    spec.ranks.push_back(specOf(key, r, worldSize));
  }
  Result<Plan> plan = redistribute(spec, rank);
  SW_CHECK(plan.isOk());
  plan->fingerprint = fingerprintOf(key);
  return std::move(*plan);
}

Plan allToAllPlan(DType dtype, std::span<const std::int64_t> inputElems, std::span<const std::int64_t> outputElems, Rank rank) {
  const int worldSize = static_cast<int>(inputElems.size());
  Plan plan;
  plan.rank = rank;
  plan.worldSize = worldSize;
  Hasher hash;
  hash.add(std::string_view("all_to_all"));
  hash.add(static_cast<std::uint64_t>(dtype));
  plan.fingerprint = hash.value();
  const std::size_t elemBytes = elementBytes(dtype);
  for (int r = 0; r < worldSize; ++r) {
    plan.inputs.push_back({dtype, {inputElems[static_cast<std::size_t>(r)]}});
    plan.outputs.push_back({dtype, {outputElems[static_cast<std::size_t>(r)]}});
  }
  for (int step = 0; step < worldSize; ++step) {
    const Rank from = (rank + step) % worldSize;
    const std::int64_t elems = outputElems[static_cast<std::size_t>(from)];
    if (elems == 0) {
      continue;
    }
    // What comes from `from` is its input number `rank`.
    const auto first = static_cast<std::uint32_t>(plan.moves.size());
    plan.moves.push_back({.output = from, .offset = {0}, .shape = {elems}, .firstSource = static_cast<std::uint32_t>(plan.sources.size())});
    plan.sources.push_back({.rank = from, .input = rank, .slot = from == rank ? rank : 0, .offset = {0}});
    if (from == rank) {
      plan.numOwnCopies = 1;
    } else {
      plan.receives.push_back({.peer = from,
                               .first = first,
                               .count = 1,
                               .bytes = static_cast<std::uint64_t>(elems) * elemBytes,
                               .numItems = 1,
                               .inputs = {rank}});
    }
  }
  plan.firstCombine = static_cast<std::uint32_t>(plan.moves.size());
  for (int step = 1; step < worldSize; ++step) {
    const Rank to = (rank + step) % worldSize;
    const std::int64_t elems = inputElems[static_cast<std::size_t>(to)];
    if (elems == 0) {
      continue;
    }
    const auto first = static_cast<std::uint32_t>(plan.sendItems.size());
    plan.sendItems.push_back({.input = to, .slot = 0, .offset = {0}, .shape = {elems}});
    plan.sends.push_back(
        {.peer = to, .first = first, .count = 1, .bytes = static_cast<std::uint64_t>(elems) * elemBytes, .numItems = 1, .inputs = {to}});
  }
  return plan;
}

}  // namespace shardwire::internal
