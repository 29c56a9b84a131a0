// One simulation: the processes and the links of all groups, and the faults that happen to both.
#pragma once

#include <memory>
#include <vector>

#include "tests/simulate/program.h"
#include "tests/simulate/survivors.h"

namespace shardwire::simulate {

// All parts of one simulation. Later members use earlier members.
struct Job {
  Job(Schedule drawn, bool isTraced);
  // The links of a group of the schedule.
  void addNetwork(std::size_t group);

  Schedule schedule;  // groups that are made anew come behind the drawn groups
  World world;
  Survivors survivors{*this};
  std::vector<std::unique_ptr<Network>> networks;  // by group
  std::vector<std::unique_ptr<Process>> processes;
  std::vector<std::unique_ptr<Program>> programs;  // by process
};

void scheduleFault(Job& job, const Fault& fault);

}  // namespace shardwire::simulate
