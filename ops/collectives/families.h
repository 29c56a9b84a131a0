// One builder per family; each file's head gives its algorithms and what they cost. Called by programOf().
#pragma once

#include "ops/collectives/collective.h"

namespace shardwire::internal {

Program broadcastProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, int worldSize);      // broadcast.cc
Program reduceProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, int worldSize);         // reduce.cc
Program allReduceProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, int worldSize);      // all_reduce.cc
Program gatherProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, int worldSize);         // gather.cc, also all_gather
Program scatterProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, int worldSize);        // scatter.cc
Program reduceScatterProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, int worldSize);  // reduce_scatter.cc
Program allToAllProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, int worldSize);       // all_to_all.cc
Program barrierProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank, int worldSize);        // barrier.cc

}  // namespace shardwire::internal
