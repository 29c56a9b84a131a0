#include "backend/exec/progress_role.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace shardwire::internal {
namespace {

// A role with one follower, which stops following when it leads.
class ProgressRoleTest : public testing::Test {
 protected:
  ~ProgressRoleTest() override {
    role_.stop();
    follower_.join();
  }

  // Runs callbacks for `time`; whether this thread still leads.
  bool runCallbacks(Duration time) {
    std::uint64_t turn = 0;
    role_.enterCallbacks(&turn);
    const auto until = Clock::now() + time;
    while (Clock::now() < until && !leads_.load()) {
      std::this_thread::yield();
    }
    return role_.leaveCallbacks(turn);
  }

  ProgressRole role_;
  std::atomic<bool> leads_ = false;
  std::thread follower_{[this] { leads_ = role_.follow(); }};
};

TEST_F(ProgressRoleTest, AFollowerTakesTheLeadDuringALongCallback) {
  EXPECT_FALSE(runCallbacks(std::chrono::seconds(20)));
  EXPECT_TRUE(leads_.load());
}

// The follower measures the long callback although it watched short ones before, of which it was not notified. (On a
// busy machine a short one may be long.)
TEST_F(ProgressRoleTest, ALongCallbackAfterManyShortOnes) {
  const auto until = Clock::now() + 5 * kCallbackPatience;
  while (Clock::now() < until && runCallbacks(Duration(0))) {
  }
  runCallbacks(std::chrono::seconds(20));
  EXPECT_TRUE(leads_.load());
}

TEST_F(ProgressRoleTest, ALongCallbackAfterAPause) {
  runCallbacks(Duration(0));
  std::this_thread::sleep_for(10 * kCallbackPatience);
  runCallbacks(std::chrono::seconds(20));
  EXPECT_TRUE(leads_.load());
}

TEST(ProgressRole, AsksForOneFollowerUntilItFollows) {
  ProgressRole role;
  std::uint64_t turn = 0;
  EXPECT_TRUE(role.enterCallbacks(&turn));
  EXPECT_TRUE(role.leaveCallbacks(turn));
  EXPECT_FALSE(role.enterCallbacks(&turn));  // the thread is on its way
  role.noFollowerStarted();
  EXPECT_TRUE(role.enterCallbacks(&turn));
}

// The callback of the old leader still runs, so nobody would take the lead from the new leader.
TEST(ProgressRole, AsksForAnotherFollowerOnceTheFollowerLeads) {
  ProgressRole role;
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  EXPECT_TRUE(role.enterCallbacks(&first));
  EXPECT_TRUE(role.follow());  // returns when the callbacks have kept the lead for long
  EXPECT_TRUE(role.enterCallbacks(&second));
  EXPECT_FALSE(role.leaveCallbacks(first));
  EXPECT_TRUE(role.leaveCallbacks(second));
}

TEST_F(ProgressRoleTest, TheEndStopsAFollowerThatWatches) {
  runCallbacks(Duration(0));
  role_.stop();
  follower_.join();
  follower_ = std::thread([] {});
}

}  // namespace
}  // namespace shardwire::internal
