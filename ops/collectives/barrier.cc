// Barrier: nobody leaves before everybody came. No bytes move.
//
//   direct          n - 1 messages out of each rank, one stage.
//   dissemination   in stage t a message to the rank 2^t further on: ceil(log2 n) messages out of each rank, as many
//                   stages.
#include <vector>

#include "ops/collectives/families.h"
#include "ops/collectives/stages.h"

namespace shardwire::internal {

Program barrierProgram(const CollectiveCall&, Algorithm algorithm, Rank rank, const Topology& topology) {
  const int worldSize = topology.worldSize;
  Program program;
  if (algorithm == Algorithm::kDissemination) {
    for (Rank step = 1; step < worldSize; step *= 2) {
      const Rank to = (rank + step) % worldSize;
      const Rank from = (rank - step + worldSize) % worldSize;
      Stage& stage = program.stages.emplace_back();
      stage.plan = signalStage(std::span(&to, 1), std::span(&from, 1), rank, worldSize);
      stage.afterPrevious = program.stages.size() > 1;
    }
  }
  if (program.stages.empty()) {
    std::vector<Rank> others;
    for (Rank step = 1; step < worldSize; ++step) {
      others.push_back((rank + step) % worldSize);
    }
    program.stages.emplace_back().plan = signalStage(others, others, rank, worldSize);
  }
  return program;
}

}  // namespace shardwire::internal
