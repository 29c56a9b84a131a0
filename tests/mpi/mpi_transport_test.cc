// The contract over MPI, and what is special to it. Every test runs in each process that mpirun started: see run_mpi.py.
#include <signal.h>
#include <unistd.h>

#include "backend/transport/endpoint.h"
#include "backend/transport/mpi/mpi_process.h"
#include "tests/backend/transport/contract.h"
#include "tests/backend/transport/contract_fetch.h"

namespace shardwire::testing {
namespace {

Options overMpi() {
  Options options;
  options.transports = "mpi";
  return options;
}

Options smallLanes() {
  Options options = overMpi();
  options.ringBytes = std::size_t{16} << 10;
  options.inlineBytes = 0;
  return options;
}

const auto kFixtures =
    ::testing::Values(TransportFixture{"Mpi", false, overMpi(), true}, TransportFixture{"SmallLanes", false, smallLanes(), true});
INSTANTIATE_TEST_SUITE_P(Mpi, TransportContract, kFixtures, [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Mpi, WireContract, kFixtures, [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shardwire::testing
