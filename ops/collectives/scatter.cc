// Scatter: root's inputs[r] -> rank r's output; (n - 1) B out of root. One stage, direct. Root's output may be its own
// inputs[root].
#include "ops/collectives/families.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

Program scatterProgram(const CollectiveCall& call, Algorithm, Rank rank, const Topology& topology) {
  const int worldSize = topology.worldSize;
  const std::int64_t n = call.numElems;
  Program program;
  Stage& stage = program.stages.emplace_back();
  stage.plan = planStage(call, ReduceOp::kNone, n * worldSize, rank, worldSize, [&](Rank r) {
    RankSpec spec;
    for (Rank to = 0; to < worldSize && r == call.root; ++to) {
      spec.inputs.push_back(flatPart(to * n, n));
    }
    spec.outputs.push_back(flatPart(r * n, n));
    return spec;
  });
  for (Rank to = 0; to < worldSize && rank == call.root; ++to) {
    stage.inputs.push_back(inputOf(n, to));
  }
  stage.outputs = {outputOf(n)};
  return program;
}

}  // namespace shardwire::internal
