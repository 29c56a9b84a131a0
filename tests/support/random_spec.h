// Random specs that fit together: boxes and DTensor layouts, overlaps, replicas, several tensors, empty boxes, all
// dtypes and reductions. The same seed and options make the same case everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shardwire/op_spec.h"

namespace shardwire::testing {

struct RandomOptions {
  int minRanks = 1;
  int maxRanks = 6;
  int maxTensors = 3;
  int maxDims = 7;                // above 4 only sometimes
  std::int64_t maxElements = 48;  // of one global tensor
  bool hasReductions = true;
  bool hasLayouts = true;
  bool hasCasts = true;  // outputs of another floating type than the inputs
  // Uncovered outputs: false: specs with gaps allow gaps; true: some specs with gaps do not, and compileOp must refuse
  // these specs.
  bool hasForbiddenGaps = false;
};

struct RandomCase {
  std::uint64_t seed = 0;
  std::vector<LocalSpec> specs;  // one per rank
};

RandomCase makeRandomCase(std::uint64_t seed, const RandomOptions& options = {});
// For failure messages.
std::string describe(const RandomCase& randomCase);

}  // namespace shardwire::testing
