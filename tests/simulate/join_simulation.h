// One simulation of joins: processes make groups by the product's bootstrap, on simulated time.
#pragma once

#include "tests/simulate/join_schedule.h"
#include "tests/simulate/simulation.h"

namespace shardwire::simulate {

Outcome simulateJoins(const JoinSchedule& schedule, bool isTraced);

}  // namespace shardwire::simulate
