// Broadcast: root's input -> everybody else's output.
//
//   direct        (n - 1) B out of root, one stage. Best on one host: all readers read the same memory, and a short
//                 message is one store each.
//   tree          B out of each inner rank up to log2 n times, ceil(log2 n) stages: for short messages to many ranks.
//   chunks        root scatters n chunks, then all exchange them: 2 B out of root and B out of the others, two stages.
//                 For long messages between hosts, where one rank's link is the limit.
//   hierarchical  as chunks, three stages; the exchange takes B from each host instead of L B for L ranks on it.
#include "ops/collectives/families.h"
#include "ops/collectives/hierarchy.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

namespace {

Program directBroadcast(const CollectiveCall& call, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  Program program;
  Stage& stage = program.stages.emplace_back();
  stage.plan = planStage(call, ReduceOp::kNone, n, rank, worldSize, [&](Rank r) {
    RankSpec spec;
    (r == call.root ? spec.inputs : spec.outputs).push_back(flatPart(0, n));
    return spec;
  });
  if (rank == call.root) {
    stage.inputs = {inputOf(n)};
  } else {
    stage.outputs = {outputOf(n)};
  }
  return program;
}

// In stage t the first 2^t ranks, counted from root, have the tensor, and each gives it to the rank 2^t further on.
Program treeBroadcast(const CollectiveCall& call, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  const Rank fromRoot = (rank - call.root + worldSize) % worldSize;
  Program program;
  for (Rank have = 1; have < worldSize; have *= 2) {
    const bool gives = fromRoot < have && fromRoot + have < worldSize;
    const bool takes = fromRoot >= have && fromRoot < 2 * have;
    const Rank to = (rank + have) % worldSize;
    const Rank from = takes ? (rank - have + worldSize) % worldSize : kNobody;
    Stage stage;
    stage.plan = pairStage(call, n, gives ? std::span(&to, 1) : std::span<const Rank>(), from, rank, worldSize);
    if (gives) {
      stage.inputs = {rank == call.root ? inputOf(n) : outputOf(n)};
    }
    if (takes) {
      stage.outputs = {outputOf(n)};
    }
    stage.afterPrevious = rank != call.root && !program.stages.empty();
    program.stages.push_back(std::move(stage));
  }
  return program;
}

StageTensor chunkPlace(const CollectiveCall& call, Rank owner, Rank rank, int worldSize) {
  return chunkIn(rank == call.root ? StageTensor::From::kInput : StageTensor::From::kOutput, call, owner, worldSize);
}

// Root gives each rank its chunk.
Stage scatterStage(const CollectiveCall& call, Rank rank, int worldSize) {
  Stage scatter;
  scatter.plan = planStage(call, ReduceOp::kNone, call.numElems, rank, worldSize, [&](Rank r) {
    RankSpec spec;
    if (r == call.root) {
      spec.inputs.push_back(flatPart(0, call.numElems));
    } else {
      spec.outputs.push_back(chunkPart(call, r, worldSize));
    }
    return spec;
  });
  if (rank == call.root) {
    scatter.inputs = {inputOf(call.numElems)};
  } else {
    scatter.outputs = {chunkPlace(call, rank, rank, worldSize)};
  }
  return scatter;
}

Program chunkedBroadcast(const CollectiveCall& call, Rank rank, int worldSize) {
  Program program;
  program.stages.push_back(scatterStage(call, rank, worldSize));
  Stage& exchange = program.stages.emplace_back();
  exchange.plan = exchangeChunks(call, rank, worldSize);
  if (rank != call.root) {
    exchange.outputs = {outputOf(call.numElems)};
    exchange.afterPrevious = true;
  }
  exchange.inputs = {chunkPlace(call, rank, rank, worldSize)};
  return program;
}

// Root scatters chunks to all, which then are spread.
Program hierarchicalBroadcast(const CollectiveCall& call, Rank rank, const Topology& topology) {
  Program program;
  program.stages.push_back(scatterStage(call, rank, topology.worldSize));
  const auto partOf = [&](Rank r) { return chunkOf(call, r, topology.worldSize); };
  const auto placeOf = [&](Rank r) { return chunkPlace(call, r, rank, topology.worldSize); };
  addSpread(program,
            {.call = call, .globalElems = call.numElems, .partOf = partOf, .placeOf = placeOf, .hasAll = call.root},
            rank, topology);
  return program;
}

}  // namespace

Program broadcastProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, const Topology& topology) {
  switch (algorithm) {
    case Algorithm::kTree:
      return treeBroadcast(call, rank, topology.worldSize);
    case Algorithm::kChunks:
      return chunkedBroadcast(call, rank, topology.worldSize);
    case Algorithm::kHierarchical:
      return hierarchicalBroadcast(call, rank, topology);
    default:
      return directBroadcast(call, rank, topology.worldSize);
  }
}

}  // namespace shardwire::internal
