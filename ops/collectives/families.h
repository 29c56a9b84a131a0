// One builder per family, called by programOf(). The head of each file describes the algorithms and their cost.
#pragma once

#include "ops/collectives/collective.h"

namespace shardwire::internal {

using Builder = Program(const CollectiveCall& call, Algorithm algorithm, Rank rank, const Topology& topology);

Builder broadcastProgram;      // broadcast.cc
Builder reduceProgram;         // reduce.cc
Builder allReduceProgram;      // all_reduce.cc
Builder gatherProgram;         // gather.cc, also all_gather
Builder scatterProgram;        // scatter.cc
Builder reduceScatterProgram;  // reduce_scatter.cc
Builder allToAllProgram;       // all_to_all.cc
Builder barrierProgram;        // barrier.cc

}  // namespace shardwire::internal
