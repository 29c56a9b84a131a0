#include "ops/collectives/hierarchy.h"

#include <map>

#include "ops/collectives/stages.h"

namespace shardwire::internal {

namespace {

LocalTensor partTensor(const Spread& spread, Rank owner) {
  const auto [first, last] = spread.partOf(owner);
  LocalTensor tensor = flatPart(first, last - first);
  tensor.replicaClass = 1;  // all holders of a part hold equal elements
  return tensor;
}

// Which parts each rank has and wants in a stage.
using Picks = std::function<bool(Rank rank, Rank owner)>;

Stage stageOf(const Spread& spread, Rank rank, const Topology& topology, const Picks& has, const Picks& wants,
              bool copyOwn) {
  Stage stage;
  // Of the parts that a peer wants only those matter here that this rank has: all parts of all ranks would be n^2
  // entries.
  const auto specOf = [&](Rank r) {
    RankSpec spec;
    for (Rank owner = 0; owner < topology.worldSize; ++owner) {
      if (has(r, owner)) {
        spec.inputs.push_back(partTensor(spread, owner));
      } else if (r != spread.hasAll && wants(r, owner) && (r == rank || has(rank, owner))) {
        spec.outputs.push_back(partTensor(spread, owner));
      }
    }
    if (copyOwn) {
      spec.outputs.push_back(partTensor(spread, r));
    }
    return spec;
  };
  stage.plan =
      planStage(spread.call, ReduceOp::kNone, spread.globalElems, rank, topology.worldSize, specOf, topology.hosts);
  for (Rank owner = 0; owner < topology.worldSize; ++owner) {
    if (has(rank, owner)) {
      stage.inputs.push_back(spread.placeOf(owner));
    } else if (rank != spread.hasAll && wants(rank, owner)) {
      stage.outputs.push_back(spread.placeOf(owner));
    }
  }
  if (copyOwn) {
    stage.outputs.push_back(*spread.ownCopy);
  }
  return stage;
}

}  // namespace

HostGroups::HostGroups(std::span<const std::int32_t> hosts) {
  std::map<std::int32_t, std::size_t> numbers;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const std::size_t host = numbers.try_emplace(hosts[rank], numbers.size()).first->second;
    ranks_.resize(numbers.size());
    hostOf_.push_back(host);
    indexOf_.push_back(ranks_[host].size());
    ranks_[host].push_back(static_cast<Rank>(rank));
  }
}

void addSpread(Program& program, const Spread& spread, Rank rank, const Topology& topology) {
  const HostGroups groups(topology.hosts);
  const auto isOwn = [](Rank r, Rank owner) { return r == owner; };
  const auto holds = [&](Rank r, Rank owner) { return groups.holds(r, owner); };
  Stage across = stageOf(spread, rank, topology, isOwn, holds, false);
  across.afterPrevious = !program.stages.empty();
  Stage within = stageOf(
      spread, rank, topology, holds, [](Rank, Rank) { return true; }, spread.ownCopy.has_value());
  within.afterPrevious = true;
  program.stages.push_back(std::move(across));
  program.stages.push_back(std::move(within));
}

}  // namespace shardwire::internal
