// The cost of further groups of a process whose ranks a wire joins, and the independence of the groups. Ranks are
// forked processes.
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
    std::printf("rank %d: %zu descriptors and %zu threads with one group, %zu and %zu with %d more that have no link\n",
                rank, fds, threads, openFds(), runningThreads(), kGroups);
    EXPECT_EQ(runningThreads(), threads);
    expectSum(*first, rank, 1);  // a peer further ahead would make links here
    for (const int i : {17, 3, 11}) {
      expectSum(*groups[static_cast<std::size_t>(i)], rank + i, 2 * i + 1);
    }
    EXPECT_EQ(runningThreads(), threads);
    expectSum(*first, rank, 1);  // no rank leaves before
    groups.clear();
    EXPECT_EQ(openFds(), fds);
    EXPECT_EQ(runningThreads(), threads);
    expectSum(*first, rank, 1);
  });
}

// The listener of the first group continues when the group ends, and a group made when all groups have ended has a
// listener again.
TEST(ManyGroups, OverTcpMayEndInAnyOrder) {
  MemoryStore stores[4];
  runRanksAsProcesses(2, [&](Rank rank) {
    const Options options = lateOverTcp();
    const std::size_t fds = openFds();
    GroupPtr first = joinGroup(stores[0], rank, 2, options, "first");
    GroupPtr second = joinGroup(stores[1], rank, 2, options, "second");
    first.reset();  // without any operation: its peers never met
    GroupPtr third = joinGroup(stores[2], rank, 2, options, "third");
    expectSum(*second, rank, 1);
    expectSum(*third, rank, 1);
    third.reset();
    expectSum(*second, rank, 1);
    second.reset();
    EXPECT_LE(openFds(), fds + 2);  // the descriptors of the process: the heap
    GroupPtr last = joinGroup(stores[3], rank, 2, options, "last");
    expectSum(*last, rank, 1);
  });
}

// Groups of several jobs in one process, with separate tokens and interfaces: groups with other interfaces have another
// listener.
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
    EXPECT_GE(fds[3], fds[2] + 3);  // the epoll set, loopback's port, and the descriptor of each group
    for (int i = 2; i >= 0; --i) {
      expectSum(*groups[static_cast<std::size_t>(i)], rank + i, 2 * i + 1);
    }
  });
}

// One rank is far ahead: the rank wants a peer in a group in which the peer expects no request, and the other groups
// continue meanwhile.
TEST(ManyGroups, OfWhichOneWaitsHoldUpNoOther) {
  MemoryStore stores[2];
  runRanksAsProcesses(3, [&](Rank rank) {
    const Options options = lateOverTcp();
    GroupPtr all = joinGroup(stores[0], rank, 3, options, "all");
    std::int64_t value = 7;
    WorkPtr waiting;
    if (rank == 0) {  // rank 2 does not receive the value for a while
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
