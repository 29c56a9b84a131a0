// One builder per family, called by programOf(). The head of each file describes the algorithms and their cost.
#pragma once

#include "ops/collectives/collective.h"

namespace shardwire::internal {

Program broadcastProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank,
                         const Topology& topology);  // broadcast.cc
Program reduceProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank,
                      const Topology& topology);  // reduce.cc
Program allReduceProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank,
                         const Topology& topology);  // all_reduce.cc
Program gatherProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank,
                      const Topology& topology);  // gather.cc, also all_gather
Program scatterProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank,
                       const Topology& topology);  // scatter.cc
Program reduceScatterProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank,
                             const Topology& topology);  // reduce_scatter.cc
Program allToAllProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank,
                        const Topology& topology);  // all_to_all.cc
Program barrierProgram(const CollectiveCall& call, Algorithm algorithm, Rank rank,
                       const Topology& topology);  // barrier.cc

}  // namespace shardwire::internal
