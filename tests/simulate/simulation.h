// One simulation: builds the processes of a schedule, runs them until all have ended, and compares the reports with the
// promises of the product. Nothing may be left: no memory exposed, no frame untaken, no engine alive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulate/clock.h"
#include "tests/simulate/recording.h"
#include "tests/simulate/schedule.h"

namespace shardwire::simulate {

struct Outcome {
  std::vector<std::string> faults;  // promises that were not kept; empty: all were
  std::string trace;                // empty unless asked for
  Recording recording;              // too
  std::string summary;              // one line for each rank
  Time simulated = 0;
  std::uint64_t numEvents = 0;
  std::uint64_t numFrames = 0;
  int numFailed = 0;    // ranks that ended with an error
  int numMadeAnew = 0;  // groups, without an error
  int numFetched = 0;   // versions, by the ranks of a subscribing job
  int numBeside = 0;    // processes alive with an error in one group and none in another, after operations in both
};

Outcome simulate(Schedule schedule, bool isTraced);

}  // namespace shardwire::simulate
