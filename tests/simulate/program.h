// The program of one simulated process: a thread for all of its groups, or one for each. A thread calls the operations
// of its groups in the order of the schedule. After the first error in a group the thread makes no further call in this
// group, and then goes on or stops (Schedule::afterFailure), or the living processes make the group anew
// (Schedule::makesAnew).
#pragma once

#include <memory>
#include <vector>

#include "tests/simulate/rank.h"
#include "tests/simulate/survivors.h"

namespace shardwire::simulate {

class Program {
 public:
  Program(const Schedule& schedule, Process& process, Survivors& survivors)
      : schedule_(schedule), process_(process), survivors_(survivors) {}
  // The process is in this group.
  void addRank(std::size_t group, Network& network);
  // Gives the process its threads.
  void begin();

  // In the groups of the process.
  const std::vector<std::unique_ptr<RankProgram>>& ranks() const { return ranks_; }
  // Null: the process is not in the group.
  RankProgram* rankIn(std::size_t group) const;
  // The process died: all waits end with an error.
  void reset();

 private:
  using Ranks = std::vector<RankProgram*>;

  // On a thread.
  void run(const Ranks& ranks, std::uint64_t seed);
  void callAll(const Ranks& ranks, const std::vector<Operation>& operations, Random& random);
  // The process's rank in the group that is made anew after this group; null: the group is not made anew.
  RankProgram* goOnAfter(const RankProgram& rank, Random& random);

  const Schedule& schedule_;
  Process& process_;
  Survivors& survivors_;
  std::vector<std::unique_ptr<RankProgram>> ranks_;
  bool isReset_ = false;
  bool hasStopped_ = false;
};

}  // namespace shardwire::simulate
