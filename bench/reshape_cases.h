// The cases of reshape_bench.
#pragma once

#include "bench/bench_options.h"
#include "bench/bench_ranks.h"
#include "bench/report.h"
#include "shardwire/communicator.h"

namespace shardwire::bench {

// Shard(0) -> Shard(1) of one f32 tensor, against copies of as many bytes inside each rank. Cases take turns, so that a
// slow spell of the machine hits all of them. Every result is checked. Only rank 0's report counts.
void runReshapeCases(BenchRanks& ranks, Communicator& group, const BenchOptions& options, Report& report);

// Re-runs of a tiny bound op (time and allocations), a 4-byte allReduce, a barrier.
void runLatencyCases(BenchRanks& ranks, Communicator& group, const BenchOptions& options, Report& report);

// compileOp where every rank has, and wants, `slices` tiles. Of any number of ranks.
void runCompileCase(BenchRanks& ranks, Communicator& group, int slices, const BenchOptions& options, Report& report);

}  // namespace shardwire::bench
