// Reduce-scatter: everybody's inputs[r] -> rank r's output, combined in rank order. (n - 1) B in and out of each rank,
// which is the least there can be; one stage, direct: the reduction is fused into the reading. The output may be the
// rank's own inputs[rank].
#include "ops/collectives/families.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

Program reduceScatterProgram(const CollectiveCall& call, Algorithm, Rank rank, const Topology& topology) {
  const int worldSize = topology.worldSize;
  const std::int64_t n = call.numElems;
  Program program;
  Stage& stage = program.stages.emplace_back();
  // All inputs of all ranks would be n^2 entries. Of a peer two inputs matter here: the input for this rank, and the
  // input for the peer itself, beside which this rank's input for the peer is an addend and no copy.
  stage.plan = planStage(call, call.op, n * worldSize, rank, worldSize, [&](Rank r) {
    RankSpec spec;
    for (Rank to = 0; to < worldSize; ++to) {
      if (r == rank || to == rank || to == r) {
        spec.inputs.push_back(flatPart(to * n, n));
      }
    }
    spec.outputs.push_back(flatPart(r * n, n));
    return spec;
  });
  for (PlanSource& source : stage.plan.sources) {
    source.input = rank;  // in the peer's whole list
  }
  for (PlanEdge& edge : stage.plan.receives) {
    edge.inputs = {rank};
  }
  for (Rank to = 0; to < worldSize; ++to) {
    stage.inputs.push_back(inputOf(n, to));
  }
  stage.outputs = {outputOf(n)};
  return program;
}

}  // namespace shardwire::internal
