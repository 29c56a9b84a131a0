// What further groups of a process cost where a wire joins its ranks, and that they do not disturb each other. Ranks are forked processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::runRanksAsProcesses;
using std::chrono::seconds;
using GroupPtr = std::unique_ptr<Communicator>;

Options lateOverTcp() {
  Options options = *Options::fromEnvironment();
  options.timeout = seconds(30);
  options.transports = "tcp";
  options.links = LinksWhen::kLazy;
  return options;
}

std::size_t numEntries(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}
std::size_t openFds() {
  return numEntries("/proc/self/fd");
}
std::size_t runningThreads() {
  return numEntries("/proc/self/task");
}

GroupPtr joinGroup(MemoryStore& store, Rank rank, int n, const Options& options, const std::string& name) {
  auto group = Communicator::create(store, rank, n, options, name);
  EXPECT_TRUE(group.isOk()) << group.status().message();
  return group.isOk() ? std::move(*group) : nullptr;
}

void expectSum(Communicator& group, std::int64_t mine, std::int64_t sum) {
  const auto work = group.allReduce(TensorView::contiguous(&mine, DType::kInt64, {1}), ReduceOp::kSum);
  ASSERT_TRUE(work.isOk()) << work.status().message();
  const Status done = (*work)->wait();
  ASSERT_TRUE(done.isOk()) << done.message();
  EXPECT_EQ(mine, sum);
}

TEST(ManyGroups, OverTcpCostADescriptorEachAndNoThreadUntilTheyAreUsed) {
  constexpr int kGroups = 20;
  MemoryStore stores[kGroups + 1];
  runRanksAsProcesses(2, [&](Rank rank) {
    const Options options = lateOverTcp();
    GroupPtr first = joinGroup(stores[kGroups], rank, 2, options, "first");
    ASSERT_NE(first, nullptr);
    expectSum(*first, rank, 1);
    const std::size_t fds = openFds();
    const std::size_t threads = runningThreads();
    std::vector<GroupPtr> groups;
    for (int i = 0; i < kGroups; ++i) {
      groups.push_back(joinGroup(stores[i], rank, 2, options, "further"));
      ASSERT_NE(groups.back(), nullptr);
    }
    EXPECT_LE(openFds(), fds + kGroups);
    std::printf("rank %d: %zu descriptors and %zu threads with one group, %zu and %zu with %d more that have no link\n", rank, fds, threads,
                openFds(), runningThreads(), kGroups);
    EXPECT_EQ(runningThreads(), threads);
    expectSum(*first, rank, 1);  // a peer that is ahead would make links here
    for (const int i : {17, 3, 11}) {
      expectSum(*groups[static_cast<std::size_t>(i)], rank + i, 2 * i + 1);
    }
    EXPECT_EQ(runningThreads(), threads);
    expectSum(*first, rank, 1);  // nobody leaves before
    groups.clear();
    EXPECT_EQ(openFds(), fds);
    EXPECT_EQ(runningThreads(), threads);
    expectSum(*first, rank, 1);
  });
}

// The listener of the first group goes on when that ends, and a group that is made when all have ended has one again.
TEST(ManyGroups, OverTcpMayEndInAnyOrder) {
  MemoryStore stores[4];
  runRanksAsProcesses(2, [&](Rank rank) {
    const Options options = lateOverTcp();
    const std::size_t fds = openFds();
    GroupPtr first = joinGroup(stores[0], rank, 2, options, "first");
    GroupPtr second = joinGroup(stores[1], rank, 2, options, "second");
    first.reset();  // without any operation: the peers of it never met
    GroupPtr third = joinGroup(stores[2], rank, 2, options, "third");
    expectSum(*second, rank, 1);
    expectSum(*third, rank, 1);
    third.reset();
    expectSum(*second, rank, 1);
    second.reset();
    EXPECT_LE(openFds(), fds + 2);  // of the process: its heap
    GroupPtr last = joinGroup(stores[3], rank, 2, options, "last");
    expectSum(*last, rank, 1);
  });
}

// Groups of several jobs in one process, with tokens and interfaces of their own: those that choose others have another listener.
TEST(ManyGroups, OfSeveralJobsHaveSettingsOfTheirOwn) {
  MemoryStore stores[3];
  runRanksAsProcesses(2, [&](Rank rank) {
    Options options[3] = {lateOverTcp(), lateOverTcp(), lateOverTcp()};
    options[1].jobToken = "another job";
    options[2].socketIfname = "lo";
    std::vector<GroupPtr> groups;
    std::vector<std::size_t> fds = {openFds()};
    for (int i = 0; i < 3; ++i) {
      groups.push_back(joinGroup(stores[i], rank, 2, options[i], "job"));
      ASSERT_NE(groups.back(), nullptr);
      fds.push_back(openFds());
    }
    EXPECT_LE(fds[2], fds[1] + 1);  // one listener for both
    EXPECT_GE(fds[3], fds[2] + 3);  // its epoll set, loopback's port, and the descriptor that each group costs
    for (int i = 2; i >= 0; --i) {
      expectSum(*groups[static_cast<std::size_t>(i)], rank + i, 2 * i + 1);
    }
  });
}

// One rank is far ahead: it wants a peer in a group that the peer does not know to be wanted in, and the other groups go on meanwhile.
TEST(ManyGroups, OfWhichOneWaitsHoldUpNoOther) {
  MemoryStore stores[2];
  runRanksAsProcesses(3, [&](Rank rank) {
    const Options options = lateOverTcp();
    GroupPtr all = joinGroup(stores[0], rank, 3, options, "all");
    std::int64_t value = 7;
    WorkPtr waiting;
    if (rank == 0) {  // nobody receives it for a while
      const auto work = all->send(TensorView::contiguous(&value, DType::kInt64, {1}), 2, 5);
      ASSERT_TRUE(work.isOk());
      waiting = *work;
    }
    GroupPtr second = joinGroup(stores[1], rank, 3, options, "second");
    for (int i = 0; i < 20; ++i) {
      expectSum(*second, rank, 3);
    }
    if (rank == 2) {
      value = 0;
      const auto work = all->recv(TensorView::contiguous(&value, DType::kInt64, {1}), 0, 5);
      ASSERT_TRUE(work.isOk() && (*work)->wait().isOk());
      EXPECT_EQ(value, 7);
    }
    if (waiting != nullptr) {
      EXPECT_TRUE(waiting->wait().isOk());
    }
    expectSum(*all, rank, 3);
  });
}

}  // namespace
}  // namespace shardwire::internal
