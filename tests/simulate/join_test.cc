// Simulations of joins for a fixed number of seeds. `./run simulate --joins` runs other seeds, and replays one.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/simulate/join_simulation.h"

namespace shardwire::simulate {
namespace {

constexpr std::uint64_t kJoinSeeds = 600;

void expectJoinsKept(std::uint64_t seed) {
  const Outcome outcome = simulateJoins(drawJoins(seed), false);
  EXPECT_TRUE(outcome.faults.empty()) << fmt::format("{}\n./run simulate --joins --seed {} --trace",
                                                     fmt::join(outcome.faults, "\n"), seed);
}

TEST(SimulateJoins, KeepsThePromises) {
  const std::uint64_t first = testing::numberFromEnvironment("SHARDWIRE_ORACLE_SEED", 1);
  for (std::uint64_t seed = first; seed < first + kJoinSeeds && !HasFailure(); ++seed) {
    expectJoinsKept(seed);
  }
}

// Seeds of defects of the product, each repaired since.
TEST(SimulateJoins, KeepsThePromisesWhereItDidNot) {
  expectJoinsKept(90);         // an error named a rank in a wait for another rank, and not the other rank
  expectJoinsKept(834);        // the same, where the rank did not accept the dial
  expectJoinsKept(41605);      // the same, and the error did not say that the store gave no answer
  expectJoinsKept(222045);     // a rank knew of a death, and named another rank, which had left because of the death
  expectJoinsKept(10006);      // a store without an answer until the deadline: ranks that had given up were called dead
  expectJoinsKept(301133573);  // a rank stayed two seconds for a peer that had left, and was late for the next group
}

// Seeds for which the check was too narrow.
TEST(SimulateJoins, AllowsWhatNobodyPromises) {
  expectJoinsKept(104330);     // compile_op reached its timeout, and the ranks left without a notice
  expectJoinsKept(310053659);  // a rank was idle for longer than the grace time after the failure of another group
}

TEST(SimulateJoins, PlaysASeedTheSameWayEveryTime) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome first = simulateJoins(drawJoins(seed), true);
    const Outcome second = simulateJoins(drawJoins(seed), true);
    ASSERT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.summary, second.summary);
  }
}

TEST(SimulateJoins, PlaysASeedTheSameWayBehindOtherSeeds) {
  constexpr std::uint64_t kMany = 40;
  std::vector<std::string> traces;
  for (std::uint64_t seed = 1; seed <= kMany; ++seed) {
    traces.push_back(simulateJoins(drawJoins(seed), true).trace);
  }
  for (std::uint64_t seed = kMany; seed >= 1; --seed) {
    ASSERT_EQ(simulateJoins(drawJoins(seed), true).trace, traces[seed - 1]) << "seed " << seed;
  }
}

TEST(SimulateJoins, DrawsAllFaultsAndAllOrders) {
  std::set<JoinFaultKind> kinds;
  std::set<JoinOrder> orders;
  int numRemade = 0;
  int numLazy = 0;
  int numWithRoster = 0;
  int numFetching = 0;
  int numChangingKeys = 0;
  for (std::uint64_t seed = 1; seed <= kJoinSeeds; ++seed) {
    const JoinSchedule schedule = drawJoins(seed);
    for (const JoinFault& fault : schedule.faults) {
      kinds.insert(fault.kind);
    }
    orders.insert(schedule.order);
    numRemade += schedule.numRounds > 1 ? 1 : 0;
    numLazy += schedule.isLazy ? 1 : 0;
    numWithRoster += schedule.numRanks > 4 ? 1 : 0;
    numFetching += schedule.operations.empty() ? 0 : 1;
    numChangingKeys += schedule.recordsPerKey > 0 && schedule.options.tcpTls != TcpTls::kOff ? 1 : 0;
  }
  EXPECT_EQ(kinds.size(), 12U);
  EXPECT_EQ(orders.size(), 3U);
  EXPECT_GE(numRemade, 100);
  EXPECT_GE(numLazy, 100);
  EXPECT_GE(numWithRoster, 100);
  EXPECT_GE(numFetching, 30);
  EXPECT_GE(numChangingKeys, 10);
}

// ---- two jobs

constexpr std::uint64_t kTwoJobsSeeds = 300;

TEST(SimulateTwoJobs, KeepsThePromises) {
  const std::uint64_t first = testing::numberFromEnvironment("SHARDWIRE_ORACLE_SEED", 1);
  int numBeside = 0;
  int numFetched = 0;
  for (std::uint64_t seed = first; seed < first + kTwoJobsSeeds && !HasFailure(); ++seed) {
    const Outcome outcome = simulateJoins(drawTwoJobs(seed), false);
    EXPECT_TRUE(outcome.faults.empty()) << fmt::format("{}\n./run simulate --two-jobs --seed {} --trace",
                                                       fmt::join(outcome.faults, "\n"), seed);
    numBeside += outcome.numBeside;
    numFetched += outcome.numFetched;
  }
  EXPECT_TRUE(HasFailure() || numBeside >= 100) << numBeside << " processes lost the group of both jobs alone";
  EXPECT_TRUE(HasFailure() || numFetched >= 300) << numFetched << " versions were fetched";
}

TEST(SimulateTwoJobs, PlaysASeedTheSameWayBehindOtherSeeds) {
  constexpr std::uint64_t kMany = 20;
  std::vector<std::string> traces;
  for (std::uint64_t seed = 1; seed <= kMany; ++seed) {
    traces.push_back(simulateJoins(drawTwoJobs(seed), true).trace);
  }
  for (std::uint64_t seed = kMany; seed >= 1; --seed) {
    ASSERT_EQ(simulateJoins(drawTwoJobs(seed), true).trace, traces[seed - 1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace shardwire::simulate
