// Tests what happens to the other ranks when a rank is killed, stopped, or leaves, and which files and memory remain.
// Ranks are forked processes.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/rounds.h"
#include "tests/support/shared_value.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::awaitStopped;
using shardwire::testing::meetOutside;
using shardwire::testing::runRanksAsProcesses;
using shardwire::testing::SharedValue;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The group's timeout is 30 s. A failure within this time was noticed without the timeout; the benches measure how
// soon, since a loaded test machine may keep any process waiting for a second.
constexpr seconds kNotTheTimeout{15};

// Options from the environment: SHARDWIRE_TRANSPORTS runs all of these tests over another transport
// (tests/CMakeLists.txt).
Options testOptions() {
  Options options = *Options::fromEnvironment();
  options.timeout = seconds(30);
  return options;
}

std::unique_ptr<Communicator> join(MemoryStore& store, Rank rank, int n, const Options& options = testOptions()) {
  auto group = Communicator::create(store, rank, n, options, "job");
  EXPECT_TRUE(group.isOk()) << group.status().message();
  return group.isOk() ? std::move(*group) : nullptr;
}

// Names in `folder` that may belong to shardwire. Other programs may use both folders meanwhile.
std::set<std::string> namesIn(const char* folder, const std::string& like) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::string name = entry.path().filename(); name.find(like) != std::string::npos) {
      names.insert(std::move(name));
    }
  }
  return names;
}

TEST(KilledRank, IsNamedByEverySurvivorWithinMilliseconds) {
  constexpr int kRanks = 4;
  MemoryStore store;
  SharedValue<std::atomic<std::int64_t>> killedAt;
  SharedValue<std::atomic<int>> arrived;
  runRanksAsProcesses(kRanks,
                      [&](Rank rank) {
                        auto group = join(store, rank, kRanks);
                        ASSERT_NE(group, nullptr);
                        std::vector<float> values(100000, 1.0f);
                        const auto view = TensorView::contiguous(values.data(), DType::kFloat32, {100000});
                        for (int i = 0; i < 20; ++i) {
                          auto work = group->allReduce(view, ReduceOp::kMax);
                          ASSERT_TRUE(work.isOk() && (*work)->wait().isOk());
                        }
                        meetOutside(*arrived, kRanks);
                        if (rank == 2) {
                          *killedAt = Clock::now().time_since_epoch().count();
                          raise(SIGKILL);
                        }
                        Status status;
                        while (status.isOk()) {
                          auto work = group->allReduce(view, ReduceOp::kMax);
                          status = work.isOk() ? (*work)->wait() : work.status();
                        }
                        const auto took = Clock::now().time_since_epoch().count() - *killedAt;
                        EXPECT_LT(took, std::chrono::nanoseconds(kNotTheTimeout).count())
                            << "noticed after " << took / 1000000 << " ms";
                        EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
                        EXPECT_FALSE(group->barrier().isOk());
                      },
                      seconds(60), {2});
}

TEST(KilledRank, IsNamedToThoseWhoLookAfterOthersHaveLeftBecauseOfIt) {
  MemoryStore store;
  SharedValue<std::atomic<int>> arrived;
  SharedValue<std::atomic<bool>> left;
  runRanksAsProcesses(3,
                      [&](Rank rank) {
                        {
                          auto group = join(store, rank, 3);
                          ASSERT_NE(group, nullptr);
                          meetOutside(*arrived, 3);
                          if (rank == 2) {
                            raise(SIGKILL);
                          }
                          while (rank == 1 && !*left) {
                            std::this_thread::yield();
                          }
                          // Long enough to go by chunks: rank 1 needs the chunk summed by rank 0, and rank 0 never had
                          // rank 2's part of the chunk.
                          std::vector<float> values(100000);
                          auto work = group->allReduce(TensorView::contiguous(values.data(), DType::kFloat32, {100000}),
                                                       ReduceOp::kSum);
                          const Status status = work.isOk() ? (*work)->wait() : work.status();
                          EXPECT_EQ(status.code(), StatusCode::kPeerFailed);
                          EXPECT_NE(status.message().find("rank 2 (pid"), std::string::npos) << status.message();
                        }
                        *left = true;
                      },
                      seconds(60), {2});
}

TEST(KilledRank, EndsTheMakingOfALaterGroup) {
  MemoryStore store;
  MemoryStore later;
  SharedValue<std::atomic<int>> arrived;
  runRanksAsProcesses(3,
                      [&](Rank rank) {
                        auto group = join(store, rank, 3);
                        ASSERT_NE(group, nullptr);
                        auto barrier = group->barrier();  // joins all ranks, with late links too
                        ASSERT_TRUE(barrier.isOk() && (*barrier)->wait().isOk());
                        meetOutside(*arrived, 3);
                        if (rank == 2) {
                          raise(SIGKILL);
                        }
                        Options options = testOptions();
                        options.statusOfAbsent = [&](Rank absent) { return group->peerStatus(absent); };
                        const auto before = Clock::now();
                        const auto made = Communicator::create(later, rank, 3, options, "later");
                        EXPECT_LT(Clock::now() - before, kNotTheTimeout);
                        ASSERT_FALSE(made.isOk());
                        EXPECT_EQ(made.status().code(), StatusCode::kPeerFailed);
                        const std::string text = made.status().message();
                        EXPECT_NE(text.find("rank 2 cannot arrive: rank 2 (pid"), std::string::npos) << text;
                        EXPECT_TRUE(group->peerStatus(rank).isOk() && group->peerStatus(1 - rank).isOk());
                        EXPECT_FALSE(group->peerStatus(2).isOk());
                        EXPECT_TRUE(group->status().isOk());  // nothing needed rank 2
                        meetOutside(*arrived, 3 + 2);
                      },
                      seconds(60), {2});
}

// In a large group specs go by rank 0 and a tree: the killed rank is the root, a rank on the way of other ranks, or a
// rank at the end of the tree.
TEST(KilledRank, EndsACompileOpThatWaitsForIt) {
  for (const auto& [numRanks, killed] : {std::pair{3, 1}, std::pair{17, 0}, std::pair{17, 8}, std::pair{17, 12}}) {
    MemoryStore store;
    SharedValue<std::atomic<int>> arrived;
    runRanksAsProcesses(
        numRanks,
        [&, n = numRanks, killed = killed](Rank rank) {
          auto group = join(store, rank, n);
          ASSERT_NE(group, nullptr);
          meetOutside(*arrived, n);
          if (rank == killed) {
            std::this_thread::sleep_for(milliseconds(50));  // the other ranks mostly wait for the killed rank by then
            raise(SIGKILL);
          }
          const auto before = Clock::now();
          auto op = group->compileOp(LocalSpec{});
          ASSERT_FALSE(op.isOk());
          EXPECT_LT(Clock::now() - before, kNotTheTimeout);
          const std::string text = op.status().message();
          EXPECT_NE(text.find(fmt::format("rank {} (pid", killed)), std::string::npos) << text;
        },
        seconds(60), {killed});
  }
}

// A short all_reduce of many ranks as well.
TEST(KilledRank, EndsAnAllReduceByATreeThatWaitsForIt) {
  for (const Rank killed : {0, 32, 34}) {
    constexpr int kRanks = 35;
    Options options = testOptions();
    options.ringBytes = std::size_t{64} << 10;  // a device keeps memory for each of the 1,190 directed pairs
    MemoryStore store;
    SharedValue<std::atomic<int>> arrived;
    runRanksAsProcesses(
        kRanks,
        [&](Rank rank) {
          auto group = join(store, rank, kRanks, options);
          ASSERT_NE(group, nullptr);
          meetOutside(*arrived, kRanks);
          if (rank == killed) {
            std::this_thread::sleep_for(milliseconds(50));  // the other ranks mostly wait for the killed rank by then
            raise(SIGKILL);
          }
          const auto before = Clock::now();
          std::vector<float> values(10, 1.0f);
          auto work = group->allReduce(TensorView::contiguous(values.data(), DType::kFloat32, {10}), ReduceOp::kSum);
          const Status status = work.isOk() ? (*work)->wait() : work.status();
          EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
          EXPECT_LT(Clock::now() - before, kNotTheTimeout);
          EXPECT_NE(status.message().find(fmt::format("rank {} (pid", killed)), std::string::npos) << status.message();
        },
        seconds(60), {killed});
  }
}

// ThreadSanitizer takes long to watch as much.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kMuch = std::size_t{256} << 20;
#else
constexpr std::size_t kMuch = std::size_t{2} << 30;
#endif

TEST(KilledRank, WithMuchMemoryIsNoticed) {
  MemoryStore store;
  SharedValue<std::atomic<std::int64_t>> killedAt;
  SharedValue<std::atomic<int>> arrived;
  runRanksAsProcesses(2,
                      [&](Rank rank) {
                        auto group = join(store, rank, 2);
                        ASSERT_NE(group, nullptr);
                        auto first = group->barrier();
                        ASSERT_TRUE(first.isOk() && (*first)->wait().isOk());
                        // Tearing down 2 GB takes the kernel some hundred milliseconds; the mark in shared memory
                        // appears before the end.
                        std::vector<char> large(rank == 1 ? kMuch : 0, 1);
                        meetOutside(*arrived, 2);
                        if (rank == 1) {
                          *killedAt = Clock::now().time_since_epoch().count();
                          raise(SIGKILL);
                        }
                        auto work = group->barrier();
                        const Status status = work.isOk() ? (*work)->wait() : work.status();
                        EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
                        const auto took = Clock::now().time_since_epoch().count() - *killedAt;
                        EXPECT_LT(took, std::chrono::nanoseconds(kNotTheTimeout).count())
                            << "noticed after " << took / 1000000 << " ms";
                      },
                      seconds(60), {1});
}

TEST(StoppedRank, MakesTheTimeoutHoldAndIsNamed) {
  MemoryStore store;
  SharedValue<std::atomic<int>> stopped;
  runRanksAsProcesses(2,
                      [&](Rank rank) {
                        auto group = join(store, rank, 2);
                        ASSERT_NE(group, nullptr);
                        if (rank == 1) {
                          *stopped = getpid();
                          raise(SIGSTOP);
                          return;
                        }
                        while (*stopped == 0) {
                          std::this_thread::yield();
                        }
                        awaitStopped(*stopped);
                        std::vector<float> values(10);
                        const auto before = Clock::now();
                        auto work = group->allReduce(TensorView::contiguous(values.data(), DType::kFloat32, {10}),
                                                     ReduceOp::kSum, {.timeout = seconds(1)});
                        ASSERT_TRUE(work.isOk());
                        const Status status = (*work)->wait();
                        const auto took = Clock::now() - before;
                        kill(*stopped, SIGKILL);
                        EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
                        EXPECT_GE(took, milliseconds(1000));
                        EXPECT_LT(took, kNotTheTimeout);
                        for (const char* word : {"all_reduce", "float32[10]", "#1", "rank 1 did not arrive"}) {
                          EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
                        }
                      },
                      seconds(60), {1});
}

TEST(LeavingRank, FailsThoseWhoStillNeedIt) {
  MemoryStore store;
  SharedValue<std::atomic<bool>> isGone;
  runRanksAsProcesses(2, [&](Rank rank) {
    auto group = join(store, rank, 2);
    ASSERT_NE(group, nullptr);
    std::vector<float> values(10, static_cast<float>(rank));
    const auto view = TensorView::contiguous(values.data(), DType::kFloat32, {10});
    auto sum = group->allReduce(view, ReduceOp::kMax);
    ASSERT_TRUE(sum.isOk()) << sum.status().message();
    const Status summed = (*sum)->wait();
    ASSERT_TRUE(summed.isOk()) << summed.message();
    if (rank == 0) {
      // The frames that rank 0 sent before it left still arrive.
      auto work = group->broadcast(view, 0);
      ASSERT_TRUE(work.isOk() && (*work)->wait().isOk());
      group.reset();
      *isGone = true;
      return;
    }
    while (!*isGone) {
      std::this_thread::yield();
    }
    auto last = group->broadcast(view, 0);
    ASSERT_TRUE(last.isOk());
    EXPECT_TRUE((*last)->wait().isOk());
    auto work = group->broadcast(view, 0);
    const Status status = work.isOk() ? (*work)->wait() : work.status();
    EXPECT_FALSE(status.isOk());
    EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.message();
  });
}

TEST(LeavingRank, HasDoneItsPartOnceItsFramesAreSent) {
  MemoryStore store;
  SharedValue<std::atomic<bool>> isGone;
  runRanksAsProcesses(3, [&](Rank rank) {
    auto group = join(store, rank, 3);
    ASSERT_NE(group, nullptr);
    std::vector<float> values(10, static_cast<float>(rank + 1));
    const auto view = TensorView::contiguous(values.data(), DType::kFloat32, {10});
    // Rank 2 only gives, and leaves. Rank 1 arrives afterwards; until then rank 0 cannot take rank 2's frames, since
    // rank 0 adds in rank order.
    while (rank == 1 && !*isGone) {
      std::this_thread::yield();
    }
    auto work = group->reduce(view, 0, ReduceOp::kSum);
    ASSERT_TRUE(work.isOk()) << work.status().message();
    const Status status = (*work)->wait();
    ASSERT_TRUE(status.isOk()) << status.message();
    EXPECT_EQ(values[9], rank == 0 ? 6.0f : static_cast<float>(rank + 1));
    if (rank == 2) {
      group.reset();
      *isGone = true;
    }
  });
}

TEST(KilledJob, LeavesNothingBehind) {
  const auto shm = namesIn("/dev/shm", "shardwire");
  // A separate folder for the ranks: beside this test other files come and go in /tmp.
  std::string folder = std::filesystem::temp_directory_path() / "killed-job-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (int round = 0; round < 20; ++round) {
    MemoryStore store;
    runRanksAsProcesses(3,
                        [&](Rank rank) {
                          ::setenv("TMPDIR", folder.c_str(), 1);
                          auto group = join(store, rank, 3);
                          ASSERT_NE(group, nullptr);
                          std::vector<float> values(50000, 1.0f);
                          const auto view = TensorView::contiguous(values.data(), DType::kFloat32, {50000});
                          for (int i = 0;; ++i) {
                            if (i == 5 + round) {
                              raise(SIGKILL);
                            }
                            auto work = group->allReduce(view, ReduceOp::kSum);
                            if (!work.isOk() || !(*work)->wait().isOk()) {
                              raise(SIGKILL);
                            }
                          }
                        },
                        seconds(60), {0, 1, 2});
  }
  EXPECT_EQ(namesIn("/dev/shm", "shardwire"), shm);
  EXPECT_EQ(namesIn(folder.c_str(), ""), std::set<std::string>());
  std::filesystem::remove_all(folder);
}

std::size_t countFds() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

std::size_t countThreads() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

// Bytes that malloc has handed out, exact and whatever the kernel does with pages. A sanitizer's malloc has no such
// counter.
std::size_t allocatedBytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;
#else
  const auto counts = mallinfo2();
  return counts.uordblks + counts.hblkhd;
#endif
}

// All mappings of this process, heap and rings included. A sanitizer makes further mappings.
std::size_t countMappings() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;
#else
  std::ifstream maps("/proc/self/maps");
  return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(maps), {}, '\n'));
#endif
}

// 9000 operations, 100 groups: a leak of 8 bytes in each operation or 700 in each group shows.
constexpr std::size_t kMayGrow = 70000;

TEST(Leaks, TenThousandOperationsAndHundredGroupsGrowNothing) {
  constexpr int kOps = testing::rounds(10000);  // sanitizers count no bytes
  MemoryStore stores[110];
  runRanksAsProcesses(
      2,
      [&](Rank rank) {
        auto group = join(stores[0], rank, 2);
        ASSERT_NE(group, nullptr);
        std::vector<float> values(3000, 1.0f);
        const auto shortView = TensorView::contiguous(values.data(), DType::kFloat32, {10});
        const auto longView = TensorView::contiguous(values.data(), DType::kFloat32, {3000});
        std::size_t allocated = 0;
        for (int i = 0; i < kOps; ++i) {
          auto work = group->allReduce(i % 2 == 0 ? shortView : longView, ReduceOp::kMax);
          ASSERT_TRUE(work.isOk() && (*work)->wait().isOk());
          if (i == kOps / 10) {
            allocated = allocatedBytes();
          }
        }
        EXPECT_LE(allocatedBytes(), allocated + kMayGrow) << "by operations";

        std::size_t fds = 0;
        std::size_t threads = 0;
        std::size_t mappings = 0;
        for (int i = 1; i < 110; ++i) {
          auto other = join(stores[i], rank, 2);
          ASSERT_NE(other, nullptr);
          auto work = other->barrier();
          ASSERT_TRUE(work.isOk() && (*work)->wait().isOk());
          other.reset();
          if (i == 10) {
            fds = countFds();
            threads = countThreads();
            mappings = countMappings();
            allocated = allocatedBytes();
          }
        }
        EXPECT_EQ(countFds(), fds);
        EXPECT_EQ(countThreads(), threads);
        EXPECT_LE(allocatedBytes(), allocated + kMayGrow) << "by groups";
        EXPECT_LE(countMappings(), mappings + 4) << "by groups";
        auto last = group->barrier();  // a rank that leaves removes its links
        ASSERT_TRUE(last.isOk() && (*last)->wait().isOk());
      },
      seconds(120));
}

}  // namespace
}  // namespace shardwire::internal
