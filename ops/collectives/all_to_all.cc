// All-to-all: my inputs[r] -> rank r's outputs[me]. One direct stage, in which every byte moves once. Each rank knows
// only its own counts, so a disagreement is detected when the bytes arrive. Peers are visited by distance, so that not
// all ranks start with the same peer.
#include "ops/collectives/families.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

namespace {

Plan plan(const CollectiveCall& call, Rank rank) {
  const DType dtype = call.dtype;
  const std::span<const std::int64_t> inputElems = call.inputElems;
  const std::span<const std::int64_t> outputElems = call.outputElems;
  const int worldSize = static_cast<int>(inputElems.size());
  Plan plan;
  plan.rank = rank;
  plan.worldSize = worldSize;
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
    // The bytes from rank `from` are input number `rank` of rank `from`.
    const auto first = static_cast<std::uint32_t>(plan.moves.size());
    plan.moves.push_back({.output = from,
                          .offset = {0},
                          .shape = {elems},
                          .firstSource = static_cast<std::uint32_t>(plan.sources.size()),
                          .sourceDtype = dtype});
    plan.sources.push_back({.rank = from, .input = rank, .slot = from == rank ? rank : 0, .offset = {0}});
    if (from == rank) {
      plan.numOwnCopies = 1;
    } else {
      plan.receives.push_back({.peer = from,
                               .first = first,
                               .count = 1,
                               .numCopies = 1,
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
    plan.sendItems.push_back({.input = to, .slot = 0, .offset = {0}, .shape = {elems}, .stagedDtype = dtype});
    plan.sends.push_back({.peer = to,
                          .first = first,
                          .count = 1,
                          .numCopies = 1,
                          .bytes = static_cast<std::uint64_t>(elems) * elemBytes,
                          .numItems = 1,
                          .inputs = {to}});
  }
  return plan;
}

}  // namespace

Program allToAllProgram(const CollectiveCall& call, Algorithm, Rank rank, const Topology& topology) {
  const int worldSize = topology.worldSize;
  Program program;
  Stage& stage = program.stages.emplace_back();
  stage.plan = plan(call, rank);
  for (Rank r = 0; r < worldSize; ++r) {
    stage.inputs.push_back(inputOf(call.inputElems[static_cast<std::size_t>(r)], r));
    stage.outputs.push_back(outputOf(call.outputElems[static_cast<std::size_t>(r)], r));
  }
  return program;
}

}  // namespace shardwire::internal
