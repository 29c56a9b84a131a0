// The program of one simulated rank: makes the communicator over simulated links, calls the schedule's operations in
// order with some in flight, checks every byte of each operation that succeeded, and ends the group.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/communicator/communicator_impl.h"
#include "tests/simulate/call.h"
#include "tests/simulate/network.h"
#include "tests/simulate/schedule.h"

namespace shardwire::simulate {

// The result of a rank.
struct Report {
  bool isOver = false;
  Time overAt = 0;
  int numDone = 0;           // operations with success and the right bytes
  Status failure;            // the first error that a call or wait returned
  int failedOperation = -1;  // its number in the schedule
  Time failedAt = 0;
  std::vector<std::string> faults;  // wrong bytes, a wrong order, memory still held, a tensor changed after the end
};

class RankProgram {
 public:
  RankProgram(const Schedule& schedule, Rank rank, Network& network);
  ~RankProgram();
  // The process that runs run(). Set before the first turn.
  void setProcess(Process* process) { process_ = process; }
  void run();
  // Another thread of the program revokes the group.
  void revoke();
  // The process died: all waits end with an error, and the peers get no notice.
  void reset();
  const Report& report() const { return report_; }
  // Whether the rank's threads must take frames, since an operation is in flight or memory is served.
  bool isWaiting() const;
  // The engine of the rank is destroyed.
  bool isReleased() const { return engine_.expired(); }

 private:
  void callAll();
  bool endOldest();
  void note(const Operation& operation, const Status& status);

  const Schedule& schedule_;
  const Rank rank_;
  Network& network_;
  Process* process_ = nullptr;
  Random random_;
  std::weak_ptr<internal::Engine> engine_;
  std::unique_ptr<internal::CommunicatorImpl> group_;
  std::deque<std::unique_ptr<Call>> calls_;
  std::vector<std::unique_ptr<Call>> over_;  // kept, since nobody may read or write the tensors any more
  bool isReset_ = false;
  Report report_;
};

}  // namespace shardwire::simulate
