// All-reduce: everybody's input -> everybody's output, combined in rank order. In place.
//
//   direct   everybody reads all inputs and does all the arithmetic: n (n - 1) B in all, one stage. Only for what fits a
//            frame: a short run sends everything before it writes anything, and nobody reads in the tensor what its owner overwrites.
//   chunks   each rank combines one chunk of all inputs, then all read each other's chunks: 2 (n - 1) / n B in and out of each rank, two
//            stages, which is the least there can be.
//   hierarchical   as chunks, but the chunks cross between two hosts once: B (L (n - L) + (H - 1) L) / n out of a host of L ranks instead
//   of
//            twice the first term; three stages.
#include "ops/collectives/families.h"
#include "ops/collectives/hierarchy.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

namespace {

Program direct(const CollectiveCall& call, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  Program program;
  Stage& stage = program.stages.emplace_back();
  stage.plan = planStage(call, call.op, n, rank, worldSize, [&](Rank) {
    RankSpec spec;
    spec.inputs.push_back(flatPart(0, n));
    spec.outputs.push_back(flatPart(0, n));
    return spec;
  });
  stage.inputs = {inputOf(n)};
  stage.outputs = {outputOf(n)};
  return program;
}

StageTensor chunkInOutput(const CollectiveCall& call, Rank rank, int worldSize) {
  const auto [first, last] = chunkOf(call, rank, worldSize);
  return {StageTensor::From::kOutput, 0, first, last - first};
}

// Each rank combines its own chunk.
Stage combineStage(const CollectiveCall& call, Rank rank, int worldSize) {
  Stage combine;
  combine.plan = combineChunks(call, rank, worldSize);
  combine.inputs = {inputOf(call.numElems)};
  combine.outputs = {chunkInOutput(call, rank, worldSize)};
  return combine;
}

// Peers only read, of my tensor, the chunks that I do not write in the first stage, and only my chunk in the second: so one buffer does.
Program chunks(const CollectiveCall& call, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  Program program;
  program.stages.push_back(combineStage(call, rank, worldSize));
  Stage& collect = program.stages.emplace_back();
  collect.plan = planStage(call, ReduceOp::kNone, n, rank, worldSize, [&](Rank r) {
    const auto chunk = chunkOf(call, r, worldSize);
    RankSpec spec;
    spec.inputs.push_back(flatPart(chunk.first, chunk.second - chunk.first));
    spec.outputs.push_back(flatAllBut(chunk, n));
    return spec;
  });
  collect.inputs = {chunkInOutput(call, rank, worldSize)};
  collect.outputs = {outputOf(n)};
  collect.afterPrevious = true;
  return program;
}

// The first half is that of chunks, so the bits are the same.
Program hierarchical(const CollectiveCall& call, Rank rank, const Topology& topology) {
  Program program;
  program.stages.push_back(combineStage(call, rank, topology.worldSize));
  const auto partOf = [&](Rank r) { return chunkOf(call, r, topology.worldSize); };
  const auto placeOf = [&](Rank r) { return chunkInOutput(call, r, topology.worldSize); };
  addSpread(program, {.call = call, .globalElems = call.numElems, .partOf = partOf, .placeOf = placeOf}, rank, topology);
  return program;
}

}  // namespace

Program allReduceProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, const Topology& topology) {
  if (algorithm == Algorithm::kHierarchical) {
    return hierarchical(call, rank, topology);
  }
  return algorithm == Algorithm::kChunks ? chunks(call, rank, topology.worldSize) : direct(call, rank, topology.worldSize);
}

}  // namespace shardwire::internal
