// Ranks that somebody else started as processes: this process is one of them. tests/mpi/run_mpi.py does, by mpirun, and names a folder
// where they meet in SHARDWIRE_TEST_FOLDER. All processes run the same tests in the same order. Main thread of the test only.
#pragma once

#include <memory>
#include <string>

#include "shardwire/store.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::testing {

bool areRanksLaunched();
Rank launchedRank();
int numLaunchedRanks();

// A store for the ranks of a test, however they run. Every process makes the same ones in the same order.
std::unique_ptr<Store> makeStore();
// The transports that tests with groups of their own shall use: SHARDWIRE_TRANSPORTS.
std::string testedTransports();

// Calls function(rank) if this process is one of the first numRanks; returns once all processes came here. Where MPI is the transport it is
// initialised first, by all of them.
void runLaunchedRank(int numRanks, const RankFunction& function, Duration limit = kRankTimeLimit);

}  // namespace shardwire::testing
