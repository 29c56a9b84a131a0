// The messages in flight of all MPI connections of one group. MPI makes progress only inside of calls, and
// MpiWire::poll() makes these calls. Threads: as Wire.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "backend/transport/mpi/mpi_process.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

// The owner in every MpiCookie: a connection. Called inside of MpiWire::poll().
class MpiReceiver {
 public:
  virtual ~MpiReceiver() = default;
  virtual void onDone(const MpiDone& done) = 0;
};

class MpiWire final : public Wire {
 public:
  explicit MpiWire(MpiProcess* process) : MpiWire(process, process->api().makeOperations()) {}
  MpiWire(MpiProcess* process, std::unique_ptr<MpiOperations> operations)
      : process_(process), operations_(std::move(operations)) {}

  bool poll() override;
  int readinessFd() const override { return -1; }  // MPI has none

  MpiProcess& process() { return *process_; }
  MpiOperations& operations() { return *operations_; }
  // MPI as a whole failed, or was finalised.
  const Status& failure() const { return failure_; }

 private:
  MpiProcess* const process_;
  const std::unique_ptr<MpiOperations> operations_;
  std::vector<MpiDone> done_;
  Status failure_;
};

}  // namespace shardwire::internal
