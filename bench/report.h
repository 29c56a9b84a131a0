// Results of a bench: a table as nccl-tests prints it, or one line of JSON that run_reshape.py merges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_options.h"

namespace shardwire::bench {

struct CaseResult {
  std::string name;
  std::uint64_t bytes = 0;            // that one rank's output holds; 0: a latency
  std::vector<double> microseconds;   // one per iteration, of the slowest rank
};

// A single number that is no time: allocations of a run.
struct CountResult {
  std::string name;
  double value = 0;
};

struct Report {
  std::string bench;
  std::vector<CaseResult> cases;
  std::vector<CountResult> counts;
};

// Precondition: not empty.
double median(std::vector<double> values);

void print(const Report& report, const BenchOptions& options);

}  // namespace shardwire::bench
