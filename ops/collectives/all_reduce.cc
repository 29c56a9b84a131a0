// All-reduce: every rank's input -> every rank's output, combined in rank order. In place.
//
//   direct   every rank reads all inputs and does all the arithmetic: n (n - 1) B in all, one stage. Only for tensors
//            that fit a frame: a short run sends everything before it writes anything, so no rank reads bytes in a
//            peer's tensor that the peer overwrites.
//   tree     the addends of each 32 ranks are gathered on the first of these ranks, and so on up to rank 0, which
//            combines all addends in rank order. The result goes down the same way: see rank_tree.h. n B into rank 0,
//            less than 2 n B over all links, and (n - 1) B down, 2 ceil(log32 n) stages, n - 1 links in all. For short
//            tensors on many ranks.
//   chunks   each rank combines one chunk of all inputs, then all ranks read each other's chunks: 2 (n - 1) / n B in
//            and out of each rank, the least possible; two stages.
//   hierarchical   as chunks, but the chunks cross between two hosts once: B (L (n - L) + (H - 1) L) / n out of a host
//            of L ranks instead of twice the first term; three stages.
#include <algorithm>
#include <vector>

#include "ops/collectives/families.h"
#include "ops/collectives/hierarchy.h"
#include "ops/collectives/rank_tree.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

namespace {

// In the first stage peers read only the chunks of my tensor that I do not write. In the second stage peers read only
// my chunk. So one buffer is enough.
Program chunkedAllReduce(const CollectiveCall& call, Rank rank, int worldSize) {
  const StageTensor mine = chunkIn(StageTensor::From::kOutput, call, rank, worldSize);
  Program program;
  program.stages.push_back(combineChunks(call, rank, worldSize, mine));
  Stage& collect = program.stages.emplace_back();
  collect.plan = exchangeChunks(call, rank, worldSize);
  collect.inputs = {mine};
  collect.outputs = {outputOf(call.numElems)};
  collect.afterPrevious = true;
  return program;
}

// The first stage equals the first stage of chunks, so the bits are equal too.
Program hierarchicalAllReduce(const CollectiveCall& call, Rank rank, const Topology& topology) {
  const auto partOf = [&](Rank r) { return chunkOf(call, r, topology.worldSize); };
  const auto placeOf = [&](Rank r) { return chunkIn(StageTensor::From::kOutput, call, r, topology.worldSize); };
  Program program;
  program.stages.push_back(combineChunks(call, rank, topology.worldSize, placeOf(rank)));
  addSpread(program, {.call = call, .globalElems = call.numElems, .partOf = partOf, .placeOf = placeOf}, rank,
            topology);
  return program;
}

// ---- tree
//
// A rank's own addend stays in the rank's tensor. The addends of the ranks below follow each other in the scratch
// memory, in rank order. Nothing is added on the way: partial sums would round differently from the other algorithms.

// Wide: the messages are short, and a hop, at which a rank must be awake, costs more than the stores for 31 peers.
constexpr int kTreeWidth = 32;

StageTensor addendsBelow(const CollectiveCall& call, Rank rank, Rank first, Rank end) {
  return {StageTensor::From::kScratch, 0, (first - rank - 1) * call.numElems, (end - first) * call.numElems};
}

// The blocks of one level are gathered on the first rank of their block of the next level.
Stage raiseStage(const CollectiveCall& call, const RankTree& tree, int level, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  const auto width = static_cast<Rank>(tree.widthOf(level));
  const Rank parent = tree.firstOf(rank, level);
  const Rank end = tree.endOf(parent, level + 1);
  Stage stage;
  if (rank % width != 0) {
    stage.plan = signalStage({}, {}, rank, worldSize);
    return stage;
  }
  stage.plan = planStage(call, ReduceOp::kNone, n * worldSize, rank, worldSize, [&](Rank r) {
    RankSpec spec;
    if (r == parent && end - parent > width) {
      spec.outputs.push_back(flatPart((r + width) * n, (end - r - width) * n));
    } else if (r > parent && r < end && r % width == 0) {
      spec.inputs.push_back(flatPart(r * n, n));
      spec.inputs.push_back(flatPart((r + 1) * n, (tree.endOf(r, level) - r - 1) * n));
    }
    return spec;
  });
  if (rank != parent) {
    stage.inputs = {inputOf(n), addendsBelow(call, rank, rank + 1, tree.endOf(rank, level))};
  } else if (end - parent > width) {
    stage.outputs = {addendsBelow(call, rank, rank + width, end)};
  }
  return stage;
}

// All addends are gathered on rank 0, which combines them.
Stage combineAtRoot(const CollectiveCall& call, const RankTree& tree, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  const int level = tree.numLevels() - 1;
  Stage stage;
  if (rank % tree.widthOf(level) != 0) {
    stage.plan = signalStage({}, {}, rank, worldSize);
    return stage;
  }
  stage.plan = planStage(call, call.op, n, rank, worldSize, [&](Rank r) {
    RankSpec spec;
    if (r % tree.widthOf(level) == 0) {
      spec.inputs.assign(static_cast<std::size_t>(tree.endOf(r, level) - r), flatPart(0, n));
    }
    if (r == 0) {
      spec.outputs.push_back(flatPart(0, n));
    }
    return spec;
  });
  stage.inputs = {inputOf(n)};
  for (Rank below = rank + 1; below < tree.endOf(rank, level); ++below) {
    stage.inputs.push_back(addendsBelow(call, rank, below, below + 1));
  }
  if (rank == 0) {
    stage.outputs = {outputOf(n)};
  }
  return stage;
}

// A parent at `level` has the result and sends it to the parent's children at that level.
Stage lowerStage(const CollectiveCall& call, const RankTree& tree, int level, Rank rank, int worldSize) {
  const std::int64_t n = call.numElems;
  const std::vector<Rank> to = tree.childrenOf(rank, level);
  const bool takes = rank != 0 && tree.levelOf(rank) == level;
  Stage stage;
  stage.plan = pairStage(call, n, to, takes ? tree.parentOf(rank) : kNobody, rank, worldSize);
  if (!to.empty()) {
    stage.inputs = {outputOf(n)};
  }
  if (takes) {
    stage.outputs = {outputOf(n)};
  }
  return stage;
}

Program treeAllReduce(const CollectiveCall& call, Rank rank, int worldSize) {
  const RankTree tree(worldSize, kTreeWidth);
  const int top = tree.numLevels() - 1;
  Program program;
  program.scratchElems = (tree.endOf(rank, std::min(tree.levelOf(rank), top)) - rank - 1) * call.numElems;
  for (int level = 0; level < top; ++level) {
    program.stages.push_back(raiseStage(call, tree, level, rank, worldSize));
  }
  program.stages.push_back(combineAtRoot(call, tree, rank, worldSize));
  for (int level = top; level >= 0; --level) {
    program.stages.push_back(lowerStage(call, tree, level, rank, worldSize));
  }
  // Each stage reads bytes that the stage before wrote, and the result is written where the rank's own addend was.
  for (std::size_t i = 1; i < program.stages.size(); ++i) {
    program.stages[i].afterPrevious = true;
  }
  return program;
}

}  // namespace

Program allReduceProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, const Topology& topology) {
  switch (algorithm) {
    case Algorithm::kTree:
      return treeAllReduce(call, rank, topology.worldSize);
    case Algorithm::kChunks:
      return chunkedAllReduce(call, rank, topology.worldSize);
    case Algorithm::kHierarchical:
      return hierarchicalAllReduce(call, rank, topology);
    default:
      return reduceProgram(call, Algorithm::kDirect, rank, topology);
  }
}

}  // namespace shardwire::internal
