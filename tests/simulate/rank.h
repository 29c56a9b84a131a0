// One rank of one group: makes the communicator over simulated links, calls operations with some in flight, checks
// every byte of each operation that succeeded, and ends the group.
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
  std::size_t group = 0;
  Rank rank = 0;
  Rank process = 0;
  bool isDead = false;
  Time diedAt = kNever;  // since the begin
  bool isOver = false;
  int numDone = 0;                  // operations with success and the right bytes
  Status failure;                   // the first error that a call or wait returned
  int failedOperation = -1;         // its number in the schedule
  Time madeAt = 0;                  // when this rank's group existed
  Time failedAt = 0;                // since the begin
  Time longestCall = 0;             // the longest time for which one call or wait held the thread
  std::vector<std::string> faults;  // wrong bytes, a wrong order, memory still held, a tensor changed after the end
};

class RankProgram {
 public:
  RankProgram(const Schedule& schedule, std::size_t group, Rank rank, Network& network, Process& process);
  ~RankProgram();

  // ---- for a thread of the process
  void begin();
  // Calls the operation, and waits for the oldest ones while too many are in flight. False: the group failed.
  bool call(const Operation& operation);
  // Waits for the operations in flight.
  void waitForAll();
  void end();

  // Another thread of the program revokes the group.
  void revoke();
  // The process died: all waits end with an error, and the peers get no notice.
  void reset();
  std::size_t group() const { return report_.group; }
  const Report& report() const { return report_; }
  // Whether the rank's threads must take frames, since an operation is in flight or memory is served.
  bool isWaiting() const;
  // The engine of the rank is destroyed.
  bool isReleased() const { return engine_.expired(); }

 private:
  bool endOldest();
  void noteHeld();
  void note(const Operation& operation, const Status& status);

  const Schedule& schedule_;
  Network& network_;
  Process& process_;
  std::weak_ptr<internal::Engine> engine_;
  std::unique_ptr<internal::CommunicatorImpl> group_;
  std::deque<std::unique_ptr<Call>> calls_;
  std::vector<std::unique_ptr<Call>> over_;  // kept, since nobody may read or write the tensors any more
  Report report_;
  Time heldSince_ = 0;  // the last call or wait of the thread began
};

}  // namespace shardwire::simulate
