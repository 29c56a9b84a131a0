// Gather: everybody's input -> root's outputs[r]; (n - 1) B into root. All-gather: the same on every rank, n (n - 1) B
// in all, (n - 1) B in and out of each rank, which is the least there can be. One stage, direct. The input may be the
// rank's own output: it is then rewritten with itself. All-gather, hierarchical: two stages; (H - 1) L B out of a host
// of L ranks instead of L (n - L) B.
#include "ops/collectives/families.h"
#include "ops/collectives/hierarchy.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

namespace {

Program hierarchicalAllGather(const CollectiveCall& call, Rank rank, const Topology& topology) {
  const std::int64_t n = call.numElems;
  const auto partOf = [&](Rank r) { return std::pair(r * n, (r + 1) * n); };
  const auto placeOf = [&](Rank r) { return r == rank ? inputOf(n) : outputOf(n, r); };
  Program program;
  addSpread(program,
            {.call = call,
             .globalElems = n * topology.worldSize,
             .partOf = partOf,
             .placeOf = placeOf,
             .ownCopy = outputOf(n, rank)},
            rank, topology);
  return program;
}

}  // namespace

Program gatherProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, const Topology& topology) {
  const int worldSize = topology.worldSize;
  const std::int64_t n = call.numElems;
  const auto collects = [&](Rank r) { return call.kind == Collective::kAllGather || r == call.root; };
  if (algorithm == Algorithm::kHierarchical) {
    return hierarchicalAllGather(call, rank, topology);
  }
  Program program;
  Stage& stage = program.stages.emplace_back();
  // Of a peer's outputs only the one for this rank's input matters here: all outputs of all ranks would be n^2 entries.
  stage.plan = planStage(call, ReduceOp::kNone, n * worldSize, rank, worldSize, [&](Rank r) {
    RankSpec spec;
    spec.inputs.push_back(flatPart(r * n, n));
    for (Rank from = 0; from < worldSize && collects(r); ++from) {
      if (r == rank || from == rank) {
        spec.outputs.push_back(flatPart(from * n, n));
      }
    }
    return spec;
  });
  stage.inputs = {inputOf(n)};
  for (Rank from = 0; from < worldSize && collects(rank); ++from) {
    stage.outputs.push_back(outputOf(n, from));
  }
  return program;
}

}  // namespace shardwire::internal
