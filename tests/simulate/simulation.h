// One simulation: builds the ranks of a schedule, runs them until all have ended, and compares the reports with the
// promises of the product.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulate/rank.h"
#include "tests/simulate/schedule.h"

namespace shardwire::simulate {

struct Outcome {
  std::vector<std::string> faults;  // promises that were not kept; empty: all were
  std::string trace;                // empty unless asked for
  std::string summary;              // one line for each rank
  Time simulated = 0;
  std::uint64_t numEvents = 0;
  std::uint64_t numFrames = 0;
  int numFailed = 0;  // ranks that ended with an error
};

Outcome simulate(const Schedule& schedule, bool isTraced);

// The promises:
//   every living rank ends within the timeouts;
//   all operations succeed unless a rank or a link is lost, and then every error names this rank or link;
//   bytes are right wherever an operation succeeded;
//   nothing is left: no memory exposed, no frame untaken, no engine alive.
std::vector<std::string> findFaults(const Schedule& schedule, const std::vector<Report>& reports,
                                    const std::vector<bool>& areDead, const std::string& leftover);

}  // namespace shardwire::simulate
