// Tests when a wait polls, when a wait offers its core, and when a wait sleeps. Only the length of a yield shows that
// the yield was long, so a long yield is simulated here.
#include "backend/base/patience.h"

#include <gtest/gtest.h>

namespace shardwire::internal {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A yield of length `took`, as far as yieldCore() can see.
Clock::time_point yieldThatTook(Duration took) {
  return yieldCore(Clock::now() - took);
}

// Some later time at which a yield may be tried again.
Clock::time_point afterAnyRest() {
  return Clock::now() + hours(1);
}

class PatienceTest : public ::testing::Test {
 protected:
  // The state that tests leave behind belongs to the process: enough short yields reset any rest. Long yields caused by
  // another program start the count anew.
  void SetUp() override {
    for (int quick = 0; quick < 64; ++quick) {
      yieldCore(Clock::now());
    }
  }
};

TEST_F(PatienceTest, NoYieldFollowsALongOneForAWhile) {
  const auto after = yieldThatTook(milliseconds(10));
  EXPECT_FALSE(mayYield(after));
  EXPECT_FALSE(mayYield(after + milliseconds(150)));
  EXPECT_TRUE(mayYield(afterAnyRest()));
}

// The trial after a rest costs as much as the yield before the rest: trials become rarer with each trial in vain.
TEST_F(PatienceTest, TheWhileGrowsWithLongTrialsUpToALimit) {
  yieldThatTook(milliseconds(10));
  const auto after = yieldThatTook(milliseconds(10));
  EXPECT_FALSE(mayYield(after + milliseconds(300)));
  const auto muchLater = yieldThatTook(seconds(100));
  EXPECT_FALSE(mayYield(muchLater + milliseconds(1900)));
  EXPECT_TRUE(mayYield(muchLater + seconds(3)));
}

TEST_F(PatienceTest, AWaitSleepsAfterALongYield) {
  for (const Duration yieldAfter : {Duration(0), Duration(1)}) {
    yieldThatTook(milliseconds(50));
    Patience patience(seconds(1000), yieldAfter);
    int polls = 1;
    while (patience.spins()) {
      ++polls;
    }
    EXPECT_LE(polls, 64) << "as long as it would not have yielded";
  }
}

TEST_F(PatienceTest, AWaitSleepsWhenItHasSpunForItsTime) {
  for (const Duration yieldAfter : {Duration(0), Duration(milliseconds(1)), Duration(hours(1))}) {
    Patience patience(milliseconds(2), yieldAfter);
    const auto began = patience.now();
    while (patience.spins()) {
    }
    EXPECT_GT(patience.now(), began);
  }
}

TEST_F(PatienceTest, AfterASleepInVainTheNextFollowsAtOnceUntilSomethingMoved) {
  Patience patience(hours(1), hours(1));
  EXPECT_TRUE(patience.spins());
  patience.sleptInVain();
  EXPECT_FALSE(patience.spins());
  EXPECT_FALSE(patience.spins());
  patience.moved();
  EXPECT_TRUE(patience.spins());
}

// Otherwise a wait whose polls always move something, for other waits, would never see its deadline.
TEST_F(PatienceTest, TheClockIsLookedAtWhileEveryPollMoves) {
  Patience patience(hours(1), hours(1));
  const auto began = patience.now();
  for (int poll = 0; poll < 64; ++poll) {
    patience.moved();
  }
  EXPECT_GT(patience.now(), began);
}

}  // namespace
}  // namespace shardwire::internal
