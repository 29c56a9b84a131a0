// Ranks with a limited address space (ulimit -v): memory that cannot be mapped is staged, and the group is made all the
// same.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "backend/memory/shared_heap.h"
#include "backend/symm/deferred_release.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SW_SHADOW_MEMORY 1
#else
#define SW_SHADOW_MEMORY 0
#endif

namespace shardwire::internal {
namespace {

using shardwire::testing::runRanksAsProcesses;

constexpr std::size_t kCount = 300000;  // long enough for every path: heap, cross-memory, staged

std::uint64_t usedAddressSpace() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

void limitAddressSpace(std::uint64_t more) {
  const rlimit limit{usedAddressSpace() + more, usedAddressSpace() + more};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
}

void expectOk(Result<WorkPtr> work) {
  const Status status = work.isOk() ? (*work)->wait() : work.status();
  ASSERT_TRUE(status.isOk()) << status.message();
}

// Sums and broadcasts, of memory in the shared heap if there is one, and of ordinary memory.
void checkTransfers(Communicator& group, Rank rank, int n) {
  const auto shared = allocateShared(kCount * sizeof(std::int64_t));
  ASSERT_TRUE(shared.isOk()) << shared.status().message();
  std::vector<std::int64_t> ordinary(kCount);
  for (auto* values : {static_cast<std::int64_t*>(shared->get()), ordinary.data()}) {
    const auto view = TensorView::contiguous(values, DType::kInt64, {static_cast<std::int64_t>(kCount)});
    for (std::size_t i = 0; i < kCount; ++i) {
      values[i] = static_cast<std::int64_t>(i) * (rank + 1);
    }
    expectOk(group.allReduce(view, ReduceOp::kSum));
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(values[i], static_cast<std::int64_t>(i) * n * (n + 1) / 2) << i;
    }
    for (Rank root = 0; root < n; ++root) {
      std::iota(values, values + kCount, rank * 1000);
      expectOk(group.broadcast(view, root));
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(values[i], static_cast<std::int64_t>(i) + root * 1000) << i;
      }
    }
  }
  expectOk(group.barrier());
}

std::unique_ptr<Communicator> join(MemoryStore& store, Rank rank, int n, OrdinaryPath path) {
  Options options;
  options.timeout = std::chrono::seconds(30);
  options.ordinaryPath = path;
  options.transports = "shm";  // no other may step in
  auto group = Communicator::create(store, rank, n, options, "limited");
  EXPECT_TRUE(group.isOk()) << group.status().message();
  return group.isOk() ? std::move(*group) : nullptr;
}

class LimitedAddressSpace : public ::testing::TestWithParam<OrdinaryPath> {
 protected:
  void SetUp() override {
    if (SW_SHADOW_MEMORY) {
      GTEST_SKIP() << "the sanitizers' shadow memory takes more address space than any limit leaves";
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, LimitedAddressSpace, ::testing::Values(OrdinaryPath::kAuto, OrdinaryPath::kStaged),
                         [](const auto& info) { return info.param == OrdinaryPath::kAuto ? "CrossMemory" : "Staged"; });

// Room for two of the four heaps.
TEST_P(LimitedAddressSpace, OfAllRanksStagesWhatIsNotMapped) {
  MemoryStore store;
  runRanksAsProcesses(4, [&](Rank rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", "2G", 1);
    limitAddressSpace(std::uint64_t{5} << 30);
    auto group = join(store, rank, 4, GetParam());
    ASSERT_NE(group, nullptr);
    const std::string description = group->describeTransports();
    EXPECT_NE(description.find("shared heap is not mapped here"), std::string::npos) << description;
    EXPECT_NE(description.find("ulimit -v"), std::string::npos) << description;
    checkTransfers(*group, rank, 4);
  });
}

// Rank 0 maps the heap of rank 1, and not the other way round: the mapped direction stays direct.
TEST_P(LimitedAddressSpace, OfOneRankIsReportedToThePeers) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", "2G", 1);
    if (rank == 1) {
      limitAddressSpace(std::uint64_t{3} << 30);
    }
    auto group = join(store, rank, 2, GetParam());
    ASSERT_NE(group, nullptr);
    const std::string description = group->describeTransports();
    EXPECT_NE(description.find(rank == 1 ? "its shared heap is not mapped here"
                                         : "this rank's shared heap is not mapped there"),
              std::string::npos)
        << description;
    checkTransfers(*group, rank, 2);
    const auto block = group->makeSymmetric({.bytes = 64, .text = "one-sided"});
    ASSERT_TRUE(block.isOk()) << block.status().message();
    EXPECT_EQ((*block)->address(1 - rank) == nullptr, rank == 1);
    EXPECT_FALSE((*block)->reachesAll());  // on rank 0 too
    EXPECT_EQ((*block)->barrier(0, std::nullopt).code(), StatusCode::kUnsupported);
    for (int i = 0; i < 2; ++i) {  // the first call makes the words
      const Status met = group->symmetricBarrier();
      EXPECT_TRUE(met.isOk()) << met.message();
    }
  });
}

// Rank 1 cannot map the heap of rank 0, and so ranks 1 and 2 take their turns by a word in another part.
TEST_P(LimitedAddressSpace, OfOneRankLeavesOneOrderOfSections) {
  MemoryStore store;
  runRanksAsProcesses(3, [&](Rank rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", rank == 0 ? "8G" : "512M", 1);
    if (rank == 1) {
      limitAddressSpace(std::uint64_t{3} << 30);
    }
    auto group = join(store, rank, 3, GetParam());
    ASSERT_NE(group, nullptr);
    const auto block = group->makeSymmetric({.bytes = 64, .text = "ordered", .isZeroed = true});
    ASSERT_TRUE(block.isOk()) << block.status().message();
    ASSERT_EQ((*block)->address(0) == nullptr, rank == 1);
    ASSERT_TRUE(group->symmetricBarrier().isOk());
    const auto counter = [&](Rank owner) -> volatile std::int64_t& {
      return *reinterpret_cast<volatile std::int64_t*>((*block)->address(owner));
    };
    constexpr int kRounds = 20000;
    for (int round = 0; rank != 0 && round < kRounds; ++round) {
      ASSERT_TRUE((*block)->enterOrder().isOk());
      counter(1) = counter(1) + 1;
      counter(2) = counter(2) + 1;
      (*block)->leaveOrder();
    }
    ASSERT_TRUE(group->symmetricBarrier().isOk());
    if (rank != 0) {
      EXPECT_EQ(counter(1), 2 * kRounds);
      EXPECT_EQ(counter(2), 2 * kRounds);
    }
    ASSERT_TRUE(group->symmetricBarrier().isOk());
  });
}

// Rank 0 has the part of rank 1 mapped, and rank 1 not the heap of rank 0.
TEST_P(LimitedAddressSpace, OfOneRankLetsSymmetricMemoryOfADeadRankComeBack) {
  MemoryStore store;
  const auto body = [&](Rank rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", "2G", 1);
    if (rank == 1) {
      limitAddressSpace(std::uint64_t{3} << 30);
    }
    auto group = join(store, rank, 2, GetParam());
    ASSERT_NE(group, nullptr);
    auto block = group->makeSymmetric({.bytes = 64, .text = "kept"});
    ASSERT_TRUE(block.isOk()) << block.status().message();
    ASSERT_EQ((*block)->address(1 - rank) == nullptr, rank == 1);
    ASSERT_TRUE(group->exchange({.what = "all have it"}).isOk());
    if (rank == 0) {
      ::raise(SIGKILL);
    }
    block->reset();
    for (int i = 0; i < 2000 && numDeferred() > 0; ++i) {  // the socket's hang-up comes after the death
      ::usleep(1000);
      releaseUnheld();
    }
    EXPECT_EQ(numDeferred(), 0U);
  };
  runRanksAsProcesses(2, body, testing::kRankTimeLimit, {0});
}

// By default a heap leaves room for the heaps of a few peers.
TEST_P(LimitedAddressSpace, IsSharedWithThePeersByDefault) {
  MemoryStore store;
  runRanksAsProcesses(4, [&](Rank rank) {
    limitAddressSpace(std::uint64_t{8} << 30);
    auto group = join(store, rank, 4, GetParam());
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->describeTransports().find("not mapped"), std::string::npos) << group->describeTransports();
    EXPECT_LT((*SharedHeap::instance())->reservedBytes(), std::uint64_t{2} << 30);
    checkTransfers(*group, rank, 4);
  });
}

// Room for the rings, and for no heap at all.
TEST_P(LimitedAddressSpace, WithoutRoomForAHeapMeansOrdinaryMemory) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    limitAddressSpace(std::uint64_t{56} << 20);
    auto group = join(store, rank, 2, GetParam());
    ASSERT_NE(group, nullptr);
    EXPECT_EQ((*SharedHeap::instance())->reservedBytes(), 0U);
    EXPECT_NE(group->describeTransports().find("no shared heap"), std::string::npos) << group->describeTransports();
    checkTransfers(*group, rank, 2);
  });
}

// A heap size that was asked for and is impossible is reduced.
TEST_P(LimitedAddressSpace, CutsAHeapThatWasAskedFor) {
  MemoryStore store;
  runRanksAsProcesses(1, [&](Rank rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", "8G", 1);
    limitAddressSpace(std::uint64_t{5} << 30);
    auto group = join(store, rank, 1, GetParam());
    ASSERT_NE(group, nullptr);
    EXPECT_EQ((*SharedHeap::instance())->reservedBytes(), std::uint64_t{4} << 30);
    checkTransfers(*group, rank, 1);
  });
}

}  // namespace
}  // namespace shardwire::internal
