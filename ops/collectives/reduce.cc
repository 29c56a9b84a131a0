// Reduce: everybody's input -> root's output, combined in rank order.
//
//   direct   (n - 1) B into root, which does all the arithmetic; one stage.
//   chunks   each rank combines one chunk of all inputs, root collects the chunks: 2 (n - 1) / n B in and out of each
//   rank, two stages. All
//            cores do the arithmetic, and no link carries more than two tensors.
#include "ops/collectives/families.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

namespace {

Program directReduce(const CollectiveCall& call, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  Program program;
  Stage& stage = program.stages.emplace_back();
  stage.plan = planStage(call, call.op, n, rank, worldSize, [&](Rank r) {
    RankSpec spec;
    spec.inputs.push_back(flatPart(0, n));
    if (r == call.root) {
      spec.outputs.push_back(flatPart(0, n));
    }
    return spec;
  });
  stage.inputs = {inputOf(n)};
  if (rank == call.root) {
    stage.outputs = {outputOf(n)};
  }
  return program;
}

Program chunkedReduce(const CollectiveCall& call, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  const bool isRoot = rank == call.root;
  const auto [first, last] = chunkOf(call, rank, worldSize);
  // In the first stage peers read only the chunks of root's tensor that root does not write, so root's chunk goes
  // straight into root's output. The other ranks must not write their tensors.
  const StageTensor mine = isRoot ? StageTensor{StageTensor::From::kOutput, 0, first, last - first}
                                  : StageTensor{StageTensor::From::kScratch, 0, 0, last - first};
  Program program;
  program.scratchElems = isRoot ? 0 : last - first;
  program.stages.resize(2);
  Stage& combine = program.stages[0];
  combine.plan = combineChunks(call, rank, worldSize);
  combine.inputs = {inputOf(n)};
  combine.outputs = {mine};
  Stage& collect = program.stages[1];
  collect.plan = planStage(call, ReduceOp::kNone, n, rank, worldSize, [&](Rank r) {
    const auto chunk = chunkOf(call, r, worldSize);
    RankSpec spec;
    if (r == call.root) {
      spec.outputs.push_back(flatAllBut(chunk, n));
    } else {
      spec.inputs.push_back(flatPart(chunk.first, chunk.second - chunk.first));
    }
    return spec;
  });
  if (isRoot) {
    collect.outputs = {outputOf(n)};
  } else {
    collect.inputs = {mine};
  }
  collect.afterPrevious = true;
  return program;
}

}  // namespace

Program reduceProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, const Topology& topology) {
  return algorithm == Algorithm::kChunks ? chunkedReduce(call, rank, topology.worldSize)
                                         : directReduce(call, rank, topology.worldSize);
}

}  // namespace shardwire::internal
