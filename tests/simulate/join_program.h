// The program of one simulated process that joins groups: makes each group by the product's bootstrap over the
// simulated store and machine, calls two operations and those of the schedule, and ends the group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/communicator/communicator_impl.h"
#include "tests/simulate/join_machine.h"
#include "tests/simulate/join_schedule.h"
#include "tests/simulate/join_store.h"
#include "tests/simulate/join_subscription.h"

namespace shardwire::simulate {

// The result of one rank in one group.
struct JoinReport {
  std::size_t group = 0;
  int round = 0;
  Rank rank = 0;
  Rank process = 0;
  Time begin = kNever;  // of the making of the group; kNever: the process has not come
  Time made = kNever;   // when the making ended, with or without success
  Time ended = kNever;  // when the operations ended
  Status joined;
  Status worked;      // of the operations
  std::string wrong;  // wrong bytes, or a tensor changed after the end
  bool hasCalledAll = false;
  int numFetched = 0;  // versions
  bool isOver = false;
};

// The parts that all processes share.
struct JoinWorld {
  JoinSchedule schedule;
  World world;
  std::vector<StoreServer> stores{};
  JoinEnds ends{};
  std::vector<std::unique_ptr<Network>> networks{};  // by number of the group in the simulation

  std::size_t numberOf(std::size_t group, int round) const {
    return group * static_cast<std::size_t>(schedule.numRounds) + static_cast<std::size_t>(round);
  }
  std::size_t numGroups() const { return numberOf(schedule.groups.size(), 0); }
  StoreServer& storeOf(std::size_t group) { return stores[schedule.storeOf(group)]; }
};

class JoinProgram {
 public:
  JoinProgram(JoinWorld& shared, Process& process);
  // Gives the process its threads.
  void begin();
  const std::vector<std::unique_ptr<JoinReport>>& reports() const { return reports_; }
  // The process died: all waits end with an error.
  void reset();
  bool hasEngine() const;

 private:
  // A group of this process.
  struct Made;

  void run(std::size_t group);
  void runNested();
  std::unique_ptr<Made> make(std::size_t group, int round, const Communicator* outer);
  Result<internal::Peers> join(JoinReport& report, JoinMachine& machine, const Communicator* outer);
  void call(Made& made);
  void idle(const JoinReport& report, int number);
  void stay(const JoinReport& report);
  Status sendFromFirst(Made& made);
  Status sum(Made& made);
  Status takeSteps(Made& made);
  Status fetchAll(Made& made);
  Status callDrawn(Made& made);
  Status endOldest(Made& made);
  void end(std::unique_ptr<Made> made);
  bool has(JoinFaultKind kind, std::size_t group) const;
  void note(const JoinReport& report, const char* what, const Status& status);

  JoinWorld& shared_;
  Process& process_;
  Publication publication_;
  std::vector<std::unique_ptr<JoinReport>> reports_;
  std::vector<std::unique_ptr<JoinMachine>> machines_;
  std::vector<std::weak_ptr<internal::Engine>> engines_;
};

}  // namespace shardwire::simulate
