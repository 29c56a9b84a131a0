// Simulations of a fixed number of seeds. `./run simulate` runs other seeds, and replays one. The first tests look for
// broken promises: in the first 600 seeds, and in the seeds of past defects. Then come the tests of the replay, of the
// groups beside and after a failed group, and of the page.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulate/page.h"
#include "tests/simulate/simulation.h"

namespace shardwire::simulate {
namespace {

constexpr std::uint64_t kSeeds = 600;

void expectKept(std::uint64_t seed) {
  const Outcome outcome = simulate(drawSchedule(seed), false);
  EXPECT_TRUE(outcome.faults.empty()) << fmt::format("{}\n./run simulate --seed {} --shrink",
                                                     fmt::join(outcome.faults, "\n"), seed);
}

TEST(Simulate, KeepsThePromises) {
  const std::uint64_t first = testing::numberFromEnvironment("SHARDWIRE_ORACLE_SEED", 1);
  for (std::uint64_t seed = first; seed < first + kSeeds && !HasFailure(); ++seed) {
    expectKept(seed);
  }
}

// Seeds of defects of the product, each repaired since.
TEST(Simulate, KeepsThePromisesWhereItDidNot) {
  expectKept(158);    // a rank needed a peer after combining all bytes of the peer
  expectKept(1524);   // a message without bytes was offered, and no part of it came
  expectKept(116);    // a rank left before a full lane took the reason of the rank's failure
  expectKept(35175);  // staged bytes without their posts: a dead peer did not count as needed
  expectKept(10149);  // an error without the stopped rank at the end of a chain of waiting ranks
  expectKept(12671);  // a recv from any rank waited until the timeout after the only other rank had died
  expectKept(10981);  // a late message was written into the tensor of a failed recv
  expectKept(45);     // a get read words that the caller had put later
  expectKept(55010);  // a lane was full while a healthy group ended: the peer lost the death in another group
  expectKept(48561);  // a recv from any rank timed out, and its error did not name the dead rank
  expectKept(
      49690);  // a peer that was joined while the group ended did not get the death in another group as the reason
  expectKept(1054407);    // a full lane dropped each answer of the rank that held all others up
  expectKept(4088866);    // a recv from any rank learned nothing of dead ranks without a link
  expectKept(8089501);    // an operation expired in the poll that ended the operation before: the error named no rank
  expectKept(50157374);   // a process ended its last group more than 10 s after the first, and gave no reason
  expectKept(311102643);  // staged bytes beside a fetch of a dead rank's memory: the rank did not count as needed
  expectKept(311105361);  // the same, with short writes
  expectKept(1127922);    // the error left out a rank in a recv from any rank, and that rank's cut link
}

// Seeds for which the check was too narrow.
TEST(Simulate, AllowsWhatNobodyPromises) {
  expectKept(2028828);   // a rank failed, stayed for half a second for a rank that another group held longer, and left
  expectKept(10081293);  // a link stalled while a rank asked the peer for its state, until both had reached the timeout
  expectKept(10159036);  // likewise, over links with short writes
  expectKept(210014089);  // likewise, and the silent rank got the first rank's reason
  expectKept(50528670);   // a host was lost a second before the timeout of an operation
  expectKept(50628340);
  expectKept(5010740);  // another group held the only thread of a missing rank for 41 s, and did not fail
  expectKept(5011596);
  expectKept(5077840);
  expectKept(400201874);  // likewise, until the rank was killed
  expectKept(200006580);  // the naive model made NaN of a product beyond float8_e4m3fn, which saturates
  expectKept(100007030);  // a process made a group after a death, ended the group, and gave no reason
  expectKept(5032546);    // a process left after a death in another group; a rank without a link got no reason
}

TEST(Simulate, PlaysASeedTheSameWayEveryTime) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome first = simulate(drawSchedule(seed), true);
    const Outcome second = simulate(drawSchedule(seed), true);
    EXPECT_GT(first.trace.size(), 200U);
    ASSERT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.summary, second.summary);
  }
}

// No state of the process outlives a simulation: a seed replays alone as it ran behind other seeds.
TEST(Simulate, PlaysASeedTheSameWayBehindOtherSeeds) {
  constexpr std::uint64_t kMany = 40;
  std::vector<std::string> traces;
  for (std::uint64_t seed = 1; seed <= kMany; ++seed) {
    traces.push_back(simulate(drawSchedule(seed), true).trace);
  }
  for (std::uint64_t seed = kMany; seed >= 1; --seed) {
    ASSERT_EQ(simulate(drawSchedule(seed), true).trace, traces[seed - 1]) << "seed " << seed;
  }
}

// A group fails with an error, and another group of the same living process ends without one.
TEST(Simulate, GroupsGoOnBesideFailedGroups) {
  int numBeside = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Schedule schedule = drawSchedule(seed);
    const bool isForThis = schedule.hasSeveralGroups() && schedule.afterFailure == AfterFailure::kGoesOn;
    const auto mayFail = [&](std::size_t group) { return schedule.mayFail(group); };
    if (isForThis && mayFail(0) != mayFail(1)) {
      const Outcome outcome = simulate(schedule, false);
      EXPECT_TRUE(outcome.faults.empty()) << "seed " << seed;
      numBeside += outcome.numBeside;
    }
  }
  EXPECT_GE(numBeside, 5);
}

TEST(Simulate, DrawsWiresThatServeFetchesInParts) {
  int numInParts = 0;
  int numOvertaking = 0;
  int numWithout = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const FetchOptions fetches = drawSchedule(seed).network.fetches;
    numInParts += fetches.mostParts > 1 ? 1 : 0;
    numOvertaking += fetches.overtakes ? 1 : 0;
    numWithout += fetches.withoutPercent > 0 ? 1 : 0;
  }
  EXPECT_GE(numInParts, 50);
  EXPECT_GE(numOvertaking, 50);
  EXPECT_GE(numWithout, 20);
}

int count(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

TEST(Simulate, WritesAPageThatPlaysTheRun) {
  for (const std::uint64_t seed : {1, 27, 141}) {
    const Schedule schedule = drawSchedule(seed);
    const Outcome outcome = simulate(schedule, true);
    const std::string page = pageOf(schedule, outcome);
    EXPECT_EQ(page, pageOf(schedule, simulate(schedule, true))) << "seed " << seed;
    EXPECT_EQ(std::ranges::count(outcome.trace, '\n'), std::ssize(outcome.recording.lines));
    for (const Recording::Line& line : outcome.recording.lines) {
      const std::string begin = line.text.substr(0, line.text.find_first_of("<\"\\"));
      ASSERT_NE(page.find(fmt::format("[{}, {}, \"{}", line.at, line.row, begin)), std::string::npos) << line.text;
    }
    EXPECT_EQ(count(page, "{sent: "), count(outcome.trace, ": sends ") + count(outcome.trace, "  sends ") +
                                          count(outcome.trace, ": requests ") + count(outcome.trace, "  requests ") -
                                          count(outcome.trace, "requests a link"))
        << "seed " << seed;
    EXPECT_EQ(count(page, "number: "), count(outcome.trace, " calls operation "));
    EXPECT_EQ(count(page, "outcome: \"failed\"") > 0, outcome.numFailed > 0);
    EXPECT_EQ(count(page, "{kind: "), std::ssize(outcome.recording.marks));
    EXPECT_EQ(count(page, "://") + count(page, "src=") + count(page, "href="), 0) << "the page needs another file";
  }
}

TEST(Simulate, WritesThePageToAFile) {
  const std::string path = ::testing::TempDir() + fmt::format("simulate_page_{}.html", ::getpid());
  ASSERT_TRUE(writePage(drawSchedule(1), path));
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(text, pageOf(drawSchedule(1), simulate(drawSchedule(1), true)));
  ::unlink(path.c_str());
  EXPECT_FALSE(writePage(drawSchedule(1), ::testing::TempDir()));
}

// The group without the dead goes on in the processes of the failed group.
TEST(Simulate, GroupsAreMadeAnewAfterALoss) {
  int numMade = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    if (Schedule schedule = drawSchedule(seed); schedule.makesAnew && schedule.mayFail(0)) {
      const Outcome outcome = simulate(std::move(schedule), false);
      EXPECT_TRUE(outcome.faults.empty()) << "seed " << seed;
      numMade += outcome.numMadeAnew;
    }
  }
  EXPECT_GE(numMade, 10);
}

TEST(Simulate, ShowsTheFaultsOnThePage) {
  std::set<std::string> kinds;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    for (const Recording::Mark& mark : simulate(drawSchedule(seed), true).recording.marks) {
      kinds.insert(mark.kind);
    }
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"cut", "dead", "hold", "revoke", "stop"}));
}

TEST(Simulate, LeavesOutWhatItIsTold) {
  const Schedule whole = drawSchedule(141);
  const Schedule part = drawSchedule(141, {.operations = {0, 6}, .faults = {1}});
  ASSERT_EQ(part.operations.size() + 2, whole.operations.size());
  EXPECT_EQ(part.faults.size() + 1, whole.faults.size());
  EXPECT_EQ(describe(part.operations[0]), describe(whole.operations[1]));
}

}  // namespace
}  // namespace shardwire::simulate
