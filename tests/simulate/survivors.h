// Makes a group anew after a loss, without the dead: the part of shardwire.shrink that is C++. The agreement about the
// living is Python's over stores (shardwire.survive); here the simulation knows the living processes. The failed group
// was ended before, and the same processes make the links and the engine of the new group.
#pragma once

#include <cstddef>
#include <deque>
#include <set>
#include <vector>

#include "tests/simulate/schedule.h"

namespace shardwire::simulate {

struct Job;

class Survivors {
 public:
  explicit Survivors(Job& job) : job_(job) {}

  // The process ended the group. Once all living processes of the group have, the group is made anew if it lost a rank
  // or failed, at most twice in a run.
  void arrive(std::size_t group, Rank process, bool hasFailed);
  // Whether processes that live are still to come.
  bool isOpen(std::size_t group) const;
  // The group that follows, or -1. To be asked when no process is to come any more.
  int next(std::size_t group);
  // Of a group that was made anew.
  const std::vector<Operation>& operationsOf(std::size_t group) const { return operations_[group - 1]; }

 private:
  struct Arrivals {
    std::set<Rank> processes;
    bool hasFailed = false;
    bool isDecided = false;
    int next = -1;
  };

  int makeNext(std::size_t group);

  Job& job_;
  std::deque<Arrivals> arrivals_;                  // by group
  std::deque<std::vector<Operation>> operations_;  // by group, without the first group
};

}  // namespace shardwire::simulate
