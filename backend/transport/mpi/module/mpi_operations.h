// Messages in flight as MPI requests, and their communicators. See MpiApi. Only inside of the module.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "backend/transport/mpi/module/mpi_calls.h"
#include "backend/transport/mpi/mpi_api.h"

namespace shardwire::internal {

// "MPI_ERR_TRUNCATE: message truncated"
std::string mpiErrorText(int code);
// kSystem: "<what>: <text>"
Status mpiStatus(const char* what, int code);

struct CommunicatorPair final : MpiPair {
  CommunicatorPair(MPI_Comm communicatorOfTwo, int peerInIt) : communicator(communicatorOfTwo), peer(peerInIt) {}
  const MPI_Comm communicator;
  const int peer;
};

// `calls` must outlive the operations.
std::unique_ptr<MpiOperations> makeOperations(MpiCalls* calls);

}  // namespace shardwire::internal
