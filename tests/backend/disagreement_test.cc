// Ranks that call different operations, where no frame shows the difference: each rank waits for the other, or a frame
// belongs to an operation that is over. Every rank gets a mismatch with both calls, in the same operation or in the
// next operation of all ranks, long before any timeout.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tests/backend/thread_group.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Status waitFor(const Result<WorkPtr>& work) {
  return work.isOk() ? (*work)->wait() : work.status();
}

using Calls = std::function<Status(Communicator&)>;

// Runs `calls` on each rank, then, if `calls` succeeded, operations of all ranks. `words` are in every rank's error.
void expectMismatch(int n, const Calls& calls, const std::vector<std::string>& words) {
  std::atomic<int> ended{0};
  withGroup(n, [&](Communicator& group) {
    Status status = calls(group);
    std::vector<std::int64_t> next(8);
    // Mostly the first. A rank that has received all frames of its peers may finish the operation before the notice of
    // the mismatch arrives.
    for (int i = 0; i < 3 && status.isOk(); ++i) {
      status = waitFor(group.allReduce(viewOf(next), ReduceOp::kSum));
    }
    EXPECT_EQ(status.code(), StatusCode::kMismatch)
        << "rank " << group.rank() << " of " << n << ": " << status.message();
    for (const std::string& word : words) {
      EXPECT_NE(status.message().find(word), std::string::npos) << word << " is not in: " << status.message();
    }
    ++ended;
    await(ended, n);  // no rank leaves: only the notices of the other ranks end the wait
  });
}

constexpr std::int64_t kFew = 4;
constexpr std::int64_t kMany = std::int64_t{1} << 18;

// Rank 1 names another root than the other ranks.
Rank rootOn(Rank rank) {
  return rank == 1 ? 1 : 0;
}

class OtherRoots : public ::testing::TestWithParam<std::tuple<int, std::int64_t>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  std::int64_t elems() const { return std::get<1>(GetParam()); }
  std::vector<std::int64_t> one() const { return std::vector<std::int64_t>(static_cast<std::size_t>(elems()), 7); }
};

TEST_P(OtherRoots, OfABroadcastAreAMismatch) {
  expectMismatch(ranks(),
                 [&](Communicator& group) {
                   auto values = one();
                   return waitFor(group.broadcast(viewOf(values), rootOn(group.rank())));
                 },
                 {"root 0", "root 1"});
}

TEST_P(OtherRoots, OfAReduceAreAMismatch) {
  expectMismatch(ranks(),
                 [&](Communicator& group) {
                   auto values = one();
                   return waitFor(group.reduce(viewOf(values), rootOn(group.rank()), ReduceOp::kSum));
                 },
                 {"root 0", "root 1"});
}

TEST_P(OtherRoots, OfAGatherAreAMismatch) {
  expectMismatch(
      ranks(),
      [&](Communicator& group) {
        auto values = one();
        std::vector<std::vector<std::int64_t>> gathered(static_cast<std::size_t>(ranks()), values);
        std::vector<TensorView> outputs;
        for (auto& each : gathered) {
          outputs.push_back(viewOf(each));
        }
        const Rank root = rootOn(group.rank());
        return waitFor(group.gather(viewOf(values), root == group.rank() ? outputs : std::vector<TensorView>{}, root));
      },
      {"root 0", "root 1"});
}

TEST_P(OtherRoots, OfAScatterAreAMismatch) {
  expectMismatch(
      ranks(),
      [&](Communicator& group) {
        auto values = one();
        std::vector<std::vector<std::int64_t>> scattered(static_cast<std::size_t>(ranks()), values);
        std::vector<TensorView> inputs;
        for (auto& each : scattered) {
          inputs.push_back(viewOf(each));
        }
        const Rank root = rootOn(group.rank());
        return waitFor(group.scatter(viewOf(values), root == group.rank() ? inputs : std::vector<TensorView>{}, root));
      },
      {"root 0", "root 1"});
}

INSTANTIATE_TEST_SUITE_P(FewAndMany, OtherRoots,
                         ::testing::Combine(::testing::Values(2, 3), ::testing::Values(kFew, kMany)));

// A root that only sends would end one broadcast after the other, though the other ranks called different broadcasts.
TEST(Disagreement, ReachesARootThatOnlySends) {
  std::atomic<int> failed{0};
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> values(4, 1);
    Status status = waitFor(group.broadcast(viewOf(values), group.rank()));  // each its own root
    await(failed, group.rank() == 0 ? 1 : 0);  // rank 1 knows by now, and has notified rank 0
    for (int i = 0; i < 2 && status.isOk(); ++i) {
      status = waitFor(group.rank() == 0 ? group.broadcast(viewOf(values), 0) : group.barrier());
    }
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << "rank " << group.rank() << ": " << status.message();
    ++failed;
    await(failed, 2);
  });
}

// The frame of a root that has left lies in the lane, and belongs to another call.
TEST(Disagreement, WithARootThatHasLeftEndsTheWait) {
  MemoryStore store;
  std::atomic<int> left{0};
  testing::runRanksAsThreads(2, [&](Rank rank) {
    auto group = Communicator::create(store, rank, 2, testOptions(), "test");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    std::vector<std::int64_t> values(rank == 0 ? 4 : 8, 1);
    if (rank == 0) {
      EXPECT_TRUE(waitFor((*group)->broadcast(viewOf(values), 0)).isOk());
      group->reset();
      ++left;
      return;
    }
    await(left, 1);
    const Status status = waitFor((*group)->broadcast(viewOf(values), 0));
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
    EXPECT_NE(status.message().find("rank 1 called broadcast(int64[8], root 0), and rank 0 called something else, but "
                                    "was gone before it said what"),
              std::string::npos)
        << status.message();
  });
}

// Elements [0, elems) of a tensor: rank `from` has the elements, rank `to` wants the elements.
LocalSpec oneMove(Rank rank, Rank from, Rank to, std::int64_t elems, const std::string& name) {
  LocalSpec spec;
  spec.name = name;
  spec.tensors.push_back({.name = "", .shape = Dims{elems}, .dtype = DType::kInt64});
  if (rank == from) {
    spec.inputs.push_back({.localShape = {elems}, .slices = {{.slice = {{0}, {elems}}, .localOffset = {0}}}});
  }
  if (rank == to) {
    spec.outputs.push_back({.localShape = {elems}, .slices = {{.slice = {{0}, {elems}}, .localOffset = {0}}}});
  }
  return spec;
}

TEST(Disagreement, OfCompiledOpsInAnotherOrderIsNoticedWhereOneMovesNothing) {
  for (const std::int64_t elems : {kFew, kMany}) {
    expectMismatch(
        3,
        [&](Communicator& group) {
          auto away = group.compileOp(oneMove(group.rank(), 1, 2, elems, "away"));  // rank 0 takes no part
          auto here = group.compileOp(oneMove(group.rank(), 0, 1, elems, "here"));
          if (!away.isOk() || !here.isOk()) {  // the other ranks may disagree before this rank has finished compiling
            return away.isOk() ? here.status() : away.status();
          }
          std::vector<std::int64_t> values(static_cast<std::size_t>(elems), group.rank());
          const TensorView view = viewOf(values);
          const std::span<const TensorView> none;
          const auto runAway = [&] {
            return (*away)->run(group.rank() == 1 ? std::span(&view, 1) : none,
                                group.rank() == 2 ? std::span(&view, 1) : none);
          };
          const auto runHere = [&] {
            return (*here)->run(group.rank() == 0 ? std::span(&view, 1) : none,
                                group.rank() == 1 ? std::span(&view, 1) : none);
          };
          if (group.rank() == 1) {
            auto first = runHere();
            auto second = runAway();
            const Status status = waitFor(first);
            return status.isOk() ? waitFor(second) : status;
          }
          auto first = runAway();
          auto second = runHere();
          const Status status = waitFor(first);
          return status.isOk() ? waitFor(second) : status;
        },
        {"away", "here"});
  }
}

// Rank 1 sends rank 0 `sent` elements, of which rank 0 expects `expected`.
void expectSplitMismatch(std::int64_t sent, std::int64_t expected) {
  expectMismatch(2,
                 [&](Communicator& group) {
                   const auto made = [](std::int64_t elems) {
                     return std::vector<std::int64_t>(static_cast<std::size_t>(elems), 3);
                   };
                   std::vector<std::vector<std::int64_t>> inputs = {made(group.rank() == 1 ? sent : 1), made(1)};
                   std::vector<std::vector<std::int64_t>> outputs = {made(1), made(group.rank() == 0 ? expected : 1)};
                   const std::vector<TensorView> in = {viewOf(inputs[0]), viewOf(inputs[1])};
                   const std::vector<TensorView> out = {viewOf(outputs[0]), viewOf(outputs[1])};
                   return waitFor(group.allToAll(out, in));
                 },
                 {"all_to_all", "rank 0", "rank 1"});
}

TEST(Disagreement, OfSplitsIsNoticedThoughNothingIsSent) {
  expectSplitMismatch(0, 5);
  expectSplitMismatch(5, 0);
}

TEST(Disagreement, OfSplitsIsNoticedWhereTheyAreReadFromThePeersMemory) {
  expectSplitMismatch(kMany, kMany / 2);
  expectSplitMismatch(kMany / 2, kMany);
  expectSplitMismatch(0, kMany);
}

// ---- the lines of log before a timeout, and its text

// The rank that waits asks the absent rank before each warning; the timeout is an hour away.
TEST(LongWait, WarnsWithWhatTheAbsentRankDoes) {
  Options options = testOptions();
  options.warnAfter = std::chrono::milliseconds(300);
  options.timeout = std::chrono::hours(1);
  std::atomic<int> arrived{0};
  ::testing::internal::CaptureStderr();
  withGroup(
      2,
      [&](Communicator& group) {
        EXPECT_TRUE(waitFor(group.barrier()).isOk());
        ++arrived;
        await(arrived, 2);
        if (group.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1800));
        }
        std::vector<std::int64_t> values(4);
        EXPECT_TRUE(waitFor(group.allReduce(viewOf(values), ReduceOp::kSum)).isOk());
      },
      options);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  const auto has = [&](const std::string& text) { return lines.find(text) != std::string::npos; };
  for (const char* const wait : {"0.3 s", "0.6 s", "1.2 s"}) {
    EXPECT_TRUE(
        has(fmt::format("(operation #2) has waited for {} of at most 3600 s: rank 1 did not arrive; rank 1 ", wait)))
        << lines;
  }
  EXPECT_TRUE(has("rank 1 has called nothing in this group since barrier (operation #1)")) << lines;
  EXPECT_FALSE(has("2.4 s")) << lines;
}

// As the holder of a queue waits for requests.
TEST(LongWait, WithATimeoutOfAYearIsNoWarning) {
  Options options = testOptions();
  options.warnAfter = std::chrono::milliseconds(100);
  std::atomic<int> hasWaited{0};
  ::testing::internal::CaptureStderr();
  withGroup(
      2,
      [&](Communicator& group) {
        std::vector<std::int64_t> value(1, 7);
        if (group.rank() == 0) {
          const auto received = group.recv(viewOf(value), 1, 0, {.timeout = std::chrono::hours(24 * 366)});
          ASSERT_TRUE(received.isOk());
          EXPECT_EQ((*received)->wait(Clock::now() + milliseconds(400)).code(), StatusCode::kTimeout);
          ++hasWaited;
          EXPECT_TRUE((*received)->wait().isOk());
        } else {
          await(hasWaited, 1);
          EXPECT_TRUE(waitFor(group.send(viewOf(value), 0, 0)).isOk());
        }
      },
      options);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines.find("has waited"), std::string::npos) << lines;
}

TEST(Timeout, StatesWhatTheAbsentRankDoes) {
  std::atomic<int> ended{0};
  withGroup(2, [&](Communicator& group) {
    EXPECT_TRUE(waitFor(group.barrier()).isOk());
    if (group.rank() == 0) {
      std::vector<std::int64_t> values(4);
      const Status status = waitFor(group.allReduce(viewOf(values), ReduceOp::kSum, {.timeout = seconds(3)}));
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
      EXPECT_NE(status.message().find("rank 1 has called nothing in this group since barrier (operation #1)"),
                std::string::npos)
          << status.message();
    }
    ++ended;
    await(ended, 2);
  });
}

TEST(Timeout, OfASendHasNoNumber) {
  std::atomic<int> ended{0};
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> values(100000);
    if (group.rank() == 0) {
      const Status status = waitFor(group.send(viewOf(values), 1, 3, {.timeout = milliseconds(200)}));
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
      EXPECT_EQ(status.message().find("#0"), std::string::npos) << status.message();
      ++ended;
    }
    await(ended, 1);
    const Status after = waitFor(group.barrier());
    EXPECT_FALSE(after.isOk());
    EXPECT_EQ(after.message().find("#0"), std::string::npos) << after.message();
    ++ended;
    await(ended, 3);
  });
}

}  // namespace
}  // namespace shardwire::internal
