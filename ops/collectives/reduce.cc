// Reduce: everybody's input -> root's output, combined in rank order. The direct algorithm is the all-reduce's, too.
//
//   direct   (n - 1) B into root, which does all the arithmetic; one stage.
//   chunks   each rank combines one chunk of all inputs, root collects the chunks: 2 (n - 1) / n B in and out of each
//            rank, two stages. All cores do the arithmetic, and no link carries more than two tensors.
#include "ops/collectives/families.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

namespace {

Program directReduce(const CollectiveCall& call, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  const auto takes = [&](Rank r) { return call.kind == Collective::kAllReduce || r == call.root; };
  Program program;
  Stage& stage = program.stages.emplace_back();
  stage.plan = planStage(call, call.op, n, rank, worldSize, [&](Rank r) {
    RankSpec spec;
    spec.inputs.push_back(flatPart(0, n));
    if (takes(r)) {
      spec.outputs.push_back(flatPart(0, n));
    }
    return spec;
  });
  stage.inputs = {inputOf(n)};
  if (takes(rank)) {
    stage.outputs = {outputOf(n)};
  }
  return program;
}

Program chunkedReduce(const CollectiveCall& call, Rank rank, int worldSize) {
  const bool isRoot = rank == call.root;
  const StageTensor own = chunkIn(StageTensor::From::kOutput, call, rank, worldSize);
  // In the first stage peers read only the chunks of root's tensor that root does not write, so root's chunk goes
  // straight into root's output. The other ranks must not write their tensors.
  const StageTensor mine = isRoot ? own : StageTensor{StageTensor::From::kScratch, 0, 0, own.numElems};
  Program program;
  program.scratchElems = isRoot ? 0 : own.numElems;
  program.stages.push_back(combineChunks(call, rank, worldSize, mine));
  Stage& collect = program.stages.emplace_back();
  collect.plan = exchangeChunks(call, rank, worldSize);
  if (isRoot) {
    collect.outputs = {outputOf(call.numElems)};
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
