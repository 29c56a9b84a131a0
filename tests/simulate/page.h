// The HTML page that plays a run: processes as rows, frames as lines between rows, operations as bars, and the faults.
#pragma once

#include <string>

#include "tests/simulate/schedule.h"
#include "tests/simulate/simulation.h"

namespace shardwire::simulate {

// `outcome`: of a traced simulation of this schedule. The same text every time.
std::string pageOf(const Schedule& schedule, const Outcome& outcome);
// Runs the schedule. False: the file cannot be written.
bool writePage(const Schedule& schedule, const std::string& path);

}  // namespace shardwire::simulate
