// A group on cores kept busy by other programs: there a rank that offers its core gets the core back after a slice of
// each program. Ranks are forked processes, more than there are cores.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "shardwire/communicator.h"
#include "shardwire/interrupt.h"
#include "shardwire/stores.h"
#include "tests/support/busy_loops.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/shared_value.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::BusyLoops;
using shardwire::testing::runRanksAsProcesses;
using shardwire::testing::SharedValue;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRanks = 3;
constexpr int kLoops = 12;

// This process and all children share two cores, whatever the machine has. Waits are cut into slices, as Python's are.
class BesideLoad : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t two = before_;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_COUNT(&two) > 2) {
        CPU_CLR(core, &two);
      }
    }
    ASSERT_EQ(::sched_setaffinity(0, sizeof two, &two), 0);
    setInterruptCheck([] { return false; });
  }
  void TearDown() override {
    setInterruptCheck(nullptr);
    ::sched_setaffinity(0, sizeof before_, &before_);
  }

  cpu_set_t before_{};
};

std::unique_ptr<Communicator> join(MemoryStore& store, Rank rank, Duration timeout) {
  Options options = *Options::fromEnvironment();
  options.timeout = timeout;
  auto group = Communicator::create(store, rank, kRanks, options, "job");
  EXPECT_TRUE(group.isOk()) << group.status().message();
  return group.isOk() ? std::move(*group) : nullptr;
}

Status sumOne(Communicator& group) {
  float value = 1;
  auto work = group.allReduce(TensorView::contiguous(&value, DType::kFloat32, {1}), ReduceOp::kSum);
  return work.isOk() ? (*work)->wait() : work.status();
}

// Waits for all ranks, so the start of a process makes no rank late.
void meet(std::atomic<int>& arrived) {
  ++arrived;
  while (arrived < kRanks) {
    ::usleep(1000);
  }
}

TEST_F(BesideLoad, ADeathIsReported) {
  MemoryStore store;
  SharedValue<std::atomic<int>> arrived;
  const BusyLoops loops(kLoops);
  runRanksAsProcesses(kRanks,
                      [&](Rank rank) {
                        auto group = join(store, rank, seconds(60));
                        ASSERT_NE(group, nullptr);
                        ASSERT_TRUE(sumOne(*group).isOk());
                        meet(*arrived);
                        if (rank == 1) {
                          ::usleep(300000);  // the other ranks wait for rank 1, in more than one slice of their wait
                          ::raise(SIGKILL);
                        }
                        const auto before = Clock::now();
                        const Status status = sumOne(*group);
                        EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
                        EXPECT_NE(status.message().find("rank 1 (pid"), std::string::npos) << status.message();
                        EXPECT_LT(Clock::now() - before, seconds(10));
                      },
                      seconds(30), {1});
}

TEST_F(BesideLoad, ATimeoutIsKept) {
  MemoryStore store;
  SharedValue<std::atomic<int>> arrived, numLate;
  const BusyLoops loops(kLoops);
  runRanksAsProcesses(
      kRanks,
      [&](Rank rank) {
        auto group = join(store, rank, seconds(60));
        ASSERT_NE(group, nullptr);
        ASSERT_TRUE(sumOne(*group).isOk());
        meet(*arrived);
        if (rank == 1) {
          while (*numLate < kRanks - 1) {
            ::usleep(1000);
          }
          return;
        }
        group->setTimeout(milliseconds(500));
        const auto before = Clock::now();
        EXPECT_EQ(sumOne(*group).code(), StatusCode::kTimeout);
        EXPECT_LT(Clock::now() - before, seconds(10));
        ++*numLate;
      },
      seconds(30));
}

}  // namespace
}  // namespace shardwire::internal
