// The one option parser of the benches between ranks. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shardwire::bench {

struct BenchOptions {
  int ranks = 2;
  std::int64_t rows = 4096;  // of the global f32 tensor
  std::int64_t columns = 4096;
  std::size_t minBytes = 4;  // sizes of the collectives go from here up, in steps of four
  std::size_t maxBytes = std::size_t{64} << 20;
  int iterations = 21;
  int warmup = 3;
  int latencyIterations = 5000;
  std::vector<std::string> only;  // names of cases; empty: all
  bool pin = false;               // each rank on a core of its own
  bool json = false;              // one line of JSON instead of the table

  bool wants(const std::string& name) const;
};

// Reads the command line; prints help or the error and exits when there is nothing to run.
BenchOptions parseBenchOptions(int argc, char** argv, const std::string& about);

}  // namespace shardwire::bench
