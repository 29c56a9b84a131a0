#include "tests/support/launched_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include <exception>

#include "backend/transport/mpi/mpi_process.h"
#include "shardwire/stores.h"

namespace shardwire::testing {
namespace {

const char* folder() {
  return ::getenv("SHARDWIRE_TEST_FOLDER");
}

int number(const char* name) {
  const char* text = ::getenv(name);
  return text == nullptr ? 0 : ::atoi(text);
}

// A separate store each time, the same on all ranks.
std::unique_ptr<Store> freshStore() {
  static int count = 0;
  return std::make_unique<FileStore>(folder(), fmt::format("store{}-", count++));
}

// Like a program that itself uses MPI: groups of some ranks cannot initialise MPI.
void initialiseMpi() {
  static const Status status = [] {
    const auto process = internal::MpiProcess::instance();
    return process.isOk() ? (*process)->prepare(numLaunchedRanks(), true, Clock::now() + std::chrono::seconds(60))
                          : process.status();
  }();
  ASSERT_TRUE(status.isOk()) << status.message();
}

}  // namespace

bool areRanksLaunched() {
  return folder() != nullptr;
}

Rank launchedRank() {
  return number("OMPI_COMM_WORLD_RANK");
}

int numLaunchedRanks() {
  return number("OMPI_COMM_WORLD_SIZE");
}

std::unique_ptr<Store> makeStore() {
  return areRanksLaunched() ? freshStore() : std::make_unique<MemoryStore>();
}

std::string testedTransports() {
  const char* text = ::getenv("SHARDWIRE_TRANSPORTS");
  return text == nullptr ? "" : text;
}

void runLaunchedRank(int numRanks, const RankFunction& function, Duration limit) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives mpirun
  ASSERT_LE(numRanks, numLaunchedRanks());
  if (testedTransports().find("mpi") != std::string::npos) {
    initialiseMpi();
  }
  const std::unique_ptr<Store> meeting = freshStore();
  try {
    if (launchedRank() < numRanks) {
      function(launchedRank());
    }
  } catch (const std::exception& error) {  // the other ranks wait for this rank all the same
    ADD_FAILURE() << "rank " << launchedRank() << " threw: " << error.what();
  }
  const Status stored = meeting->set(std::to_string(launchedRank()), "here");
  ASSERT_TRUE(stored.isOk()) << stored.message();
  const Deadline deadline = Clock::now() + limit;
  for (Rank rank = 0; rank < numLaunchedRanks(); ++rank) {
    ASSERT_TRUE(meeting->get(std::to_string(rank), deadline).isOk()) << "rank " << rank << " did not end this test";
  }
}

}  // namespace shardwire::testing
