// Results of a bench: a table in the form of nccl-tests, or one line of JSON that run_reshape.py merges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_options.h"

namespace shardwire::bench {

struct CaseResult {
  std::string name;
  std::uint64_t bytes = 0;           // in one rank's output; 0: a latency
  std::vector<double> microseconds;  // one per iteration, of the slowest rank
};

// A single number other than a time: allocations of a run.
struct CountResult {
  std::string name;
  double value = 0;
};

struct Report {
  std::string bench;
  std::vector<CaseResult> cases;
  std::vector<CountResult> counts;
};

// Precondition: values are there.
double median(std::vector<double> values);

// A report as text, to send from one process to another.
std::string toText(const Report& report);
Report fromText(const std::string& text);

void print(const Report& report, const BenchOptions& options);

}  // namespace shardwire::bench
