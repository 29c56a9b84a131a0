// One operation of the schedule on one simulated rank: places the tensors, starts the works, and compares the results.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/exec/engine.h"
#include "shardwire/communicator.h"
#include "tests/simulate/schedule.h"

namespace shardwire::simulate {

class Call {
 public:
  explicit Call(const Operation& drawn) : operation(drawn) {}
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Starts the works; an error: the operation could not be started, or blocked until its error.
  virtual Status start(Communicator& group, internal::Engine& engine) = 0;
  // After all works are done with success, and dropped: "" or what is wrong.
  virtual std::string check() = 0;
  // After all works are done, with or without success: the tensors are the program's again, and the program writes
  // other bytes into them.
  virtual void overwrite() = 0;
  // Whether the bytes of overwrite() are still there.
  virtual bool isUntouched() const = 0;
  // Whether the rank's threads must take frames for the operation, whatever the program does.
  virtual bool needsFrames() const;

  const Operation& operation;
  std::vector<WorkPtr> works;

 protected:
  Status keep(Result<WorkPtr> work);
};

std::unique_ptr<Call> makeCall(const Operation& operation, Rank rank, int numRanks);

}  // namespace shardwire::simulate
