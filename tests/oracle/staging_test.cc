// Staged bytes go through rings of bounded size, in the order of operations: cases that CollectivesOracleTest once
// found. Each of these cases hung until the timeout.
#include <gtest/gtest.h>

#include <vector>

#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::testing {
namespace {

using Body = std::function<void(Communicator&)>;

void withStagedGroup(int numRanks, std::size_t ringBytes, const Body& body) {
  MemoryStore store;
  Options options;
  options.timeout = std::chrono::seconds(20);
  options.ordinaryPath = OrdinaryPath::kStaged;
  options.ringBytes = ringBytes;
  runRanksAsThreads(numRanks, [&](Rank rank) {
    auto group = Communicator::create(store, rank, numRanks, options, "staged");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    body(**group);
    auto last = (*group)->barrier();
    EXPECT_TRUE(last.isOk() && (*last)->wait().isOk());
  });
}

TensorView viewOf(std::vector<std::int64_t>& values) {
  return TensorView::contiguous(values.data(), DType::kInt64, {static_cast<std::int64_t>(values.size())});
}

void expectOk(const Result<WorkPtr>& work) {
  ASSERT_TRUE(work.isOk()) << work.status().message();
  const Status status = (*work)->wait();
  ASSERT_TRUE(status.isOk()) << status.message();
}

// Both ends must take bytes while each still has more to give than the rings hold.
TEST(Staging, MovesMoreThanTheRingHoldsBothWaysAtOnce) {
  withStagedGroup(2, 64 << 10, [](Communicator& group) {
    constexpr std::size_t kElems = 100000;
    std::vector<std::int64_t> mine(kElems, group.rank() + 1), other(kElems), reduced(kElems);
    const std::vector<TensorView> both = {viewOf(mine), viewOf(other)};
    expectOk(group.reduceScatter(viewOf(reduced), both, ReduceOp::kMax));
    expectOk(group.allGather(viewOf(reduced), both));
    expectOk(group.allReduce(viewOf(reduced), ReduceOp::kMax));
    EXPECT_EQ(reduced, std::vector<std::int64_t>(kElems, 2));
  });
}

// An all-reduce that is short by SHARDWIRE_INLINE_BYTES, but longer than the ring.
TEST(Staging, ReducesInPlaceWhatIsLongerThanTheRing) {
  withStagedGroup(3, 4 << 10, [](Communicator& group) {
    std::vector<std::int64_t> values(1024, group.rank() + 1);
    expectOk(group.allReduce(viewOf(values), ReduceOp::kSum));
    EXPECT_EQ(values, std::vector<std::int64_t>(1024, 6));
  });
}

// Rank 0 takes nothing of the second operation before the first is done; the others have started both.
TEST(Staging, ALaterOperationDoesNotOvertakeTheSecondHalfOfALongOne) {
  withStagedGroup(3, 1 << 20, [](Communicator& group) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<std::int64_t> longer(2049, group.rank()), shorter(10, group.rank());
      auto first = group.allReduce(viewOf(longer), ReduceOp::kMax);
      if (group.rank() == 0) {
        expectOk(first);
      }
      auto second = group.allReduce(viewOf(shorter), ReduceOp::kMax);
      expectOk(first);
      expectOk(second);
      ASSERT_EQ(longer, std::vector<std::int64_t>(2049, 2));
      ASSERT_EQ(shorter, std::vector<std::int64_t>(10, 2));
    }
  });
}

}  // namespace
}  // namespace shardwire::testing
