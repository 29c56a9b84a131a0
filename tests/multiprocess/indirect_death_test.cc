// A rank died in one group, and the ranks of another group wait for a rank that failed because of the death: their
// error names the death, not only the failed rank.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/shared_value.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::meetOutside;
using shardwire::testing::runRanksAsProcesses;
using shardwire::testing::SharedValue;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Meeting {
  std::atomic<int> joined{0};
  std::atomic<int> failed{0};
  std::atomic<int> ended{0};
  std::atomic<int> victim{0};
};

Status sumIn(Communicator& group) {
  std::vector<float> values(100, 1.0f);
  auto work = group.allReduce(TensorView::contiguous(values.data(), DType::kFloat32, {100}), ReduceOp::kSum);
  return work.isOk() ? (*work)->wait() : work.status();
}

// Ranks 0, 1, 2 are the world; ranks 0 and 1 also have a small group. Rank 2 dies. Rank 0 calls `afterFailure` once its
// world has failed. `check` gets the status of rank 1, which uses nothing but the small group.
void runWorld(
    Duration grace,
    const std::function<void(std::unique_ptr<Communicator>& world, std::unique_ptr<Communicator>& pair)>& afterFailure,
    const std::function<void(const Status&, const std::string& victim)>& check) {
  MemoryStore stores[2];
  SharedValue<Meeting> meeting;
  runRanksAsProcesses(3,
                      [&](Rank rank) {
                        Meeting& all = *meeting;
                        Options options = *Options::fromEnvironment();
                        options.timeout = seconds(40);
                        options.grace = grace;
                        auto made = Communicator::create(stores[0], rank, 3, options, "world");
                        ASSERT_TRUE(made.isOk()) << made.status().message();
                        std::unique_ptr<Communicator> world = std::move(*made);
                        std::unique_ptr<Communicator> pair;
                        if (rank < 2) {
                          auto small = Communicator::create(stores[1], rank, 2, options, "pair");
                          ASSERT_TRUE(small.isOk()) << small.status().message();
                          pair = std::move(*small);
                          EXPECT_TRUE(sumIn(*pair).isOk());
                        }
                        EXPECT_TRUE(sumIn(*world).isOk());
                        if (rank == 2) {
                          all.victim = getpid();
                        }
                        meetOutside(all.joined, 3);
                        if (rank == 2) {
                          raise(SIGKILL);
                        }
                        if (rank == 0) {
                          const Status status = sumIn(*world);
                          EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
                          ++all.failed;
                          afterFailure(world, pair);
                        } else {
                          const auto before = Clock::now();
                          const Status status = sumIn(*pair);
                          EXPECT_LT(Clock::now() - before, seconds(30)) << "not by the timeout";
                          check(status, std::to_string(all.victim));
                        }
                        ++all.ended;
                        while (all.ended < 2) {
                          std::this_thread::yield();
                        }
                      },
                      seconds(60), {2});
}

TEST(IndirectDeath, IsNamedWhereARankThatFailedBecauseOfItStaysAway) {
  runWorld(
      milliseconds(300), [](auto&, auto&) {},  // rank 0 stays, with both groups, and calls nothing any more
      [](const Status& status, const std::string& victim) {
        EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
        EXPECT_NE(status.message().find("rank 2 (pid " + victim), std::string::npos) << status.message();
        EXPECT_NE(status.message().find("rank 0 does not come"), std::string::npos) << status.message();
      });
}

TEST(IndirectDeath, IsNamedWhereARankLeavesBecauseOfIt) {
  const std::function<void(std::unique_ptr<Communicator>&, std::unique_ptr<Communicator>&)> leaves[] = {
      [](auto&, auto& pair) { pair.reset(); },
      [](auto& world, auto& pair) {
        world.reset();
        pair.reset();
      },
  };
  for (const auto& leave : leaves) {
    runWorld(seconds(60), leave, [](const Status& status, const std::string& victim) {
      EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
      EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("rank 2 (pid " + victim), std::string::npos) << status.message();
    });
  }
}

TEST(IndirectDeath, DoesNotFailAGroupWhoseRankGotOverIt) {
  runWorld(
      seconds(2),  // a busy machine needs a second from the failure to the end of reset()
      [](auto& world, auto& pair) {
        world.reset();
        std::this_thread::sleep_for(seconds(3));  // longer than the grace; the failed group is gone
        EXPECT_TRUE(sumIn(*pair).isOk());
      },
      [](const Status& status, const std::string&) { EXPECT_TRUE(status.isOk()) << status.message(); });
}

}  // namespace
}  // namespace shardwire::internal
