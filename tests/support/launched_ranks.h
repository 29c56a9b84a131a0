// Ranks that another program started as processes: this process is one rank. tests/mpi/run_mpi.py starts the ranks by
// mpirun, and names a folder for the meeting in SHARDWIRE_TEST_FOLDER. All processes run the same tests in the same
// order. Main thread of the test only.
#pragma once

#include <memory>
#include <string>

#include "shardwire/store.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::testing {

bool areRanksLaunched();
Rank launchedRank();
int numLaunchedRanks();

// A store for the ranks of a test, whether the ranks are forked or launched. Every process makes the same stores in the
// same order.
std::unique_ptr<Store> makeStore();
// The transports for tests with separate groups: SHARDWIRE_TRANSPORTS.
std::string testedTransports();

// Calls function(rank) if this process is one of the first numRanks; returns once all processes have reached this call.
// If MPI is the transport, all processes initialise MPI first.
void runLaunchedRank(int numRanks, const RankFunction& function, Duration limit = kRankTimeLimit);

}  // namespace shardwire::testing
