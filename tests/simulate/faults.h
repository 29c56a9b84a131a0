// The faults of a schedule: applied to the processes, and to the links of all groups.
#pragma once

#include <memory>
#include <vector>

#include "tests/simulate/program.h"

namespace shardwire::simulate {

// All parts of one simulation. Later members use earlier members.
struct Job {
  Job(const Schedule& schedule, bool isTraced);

  const Schedule& schedule;
  World world;
  std::vector<std::unique_ptr<Network>> networks;  // by group
  std::vector<std::unique_ptr<Process>> processes;
  std::vector<std::unique_ptr<Program>> programs;  // by process
};

void scheduleFault(Job& job, const Fault& fault);

}  // namespace shardwire::simulate
