// The statements of docs/threading.md on the order of stores to symmetric memory, as small programs that fail if the
// order is broken. TSan finds a missing happens-before even if the machine does not show the wrong order. Ranks are
// threads.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/symm/symmetric_block.h"
#include "backend/symm/word_ops.h"
#include "tests/backend/thread_group.h"

namespace shardwire::internal {
namespace {

using Block = std::shared_ptr<SymmetricMemory>;

Options litmusOptions() {
  Options options = testOptions();
  options.transports = "";
  return options;
}

Block blockOf(Communicator& group, std::size_t bytes) {
  auto made = group.makeSymmetric({.bytes = bytes, .text = "litmus", .isZeroed = true});
  EXPECT_TRUE(made.isOk()) << made.status().message();
  return made.isOk() ? *made : nullptr;
}

std::int64_t* wordsOf(const Block& block, Rank rank) {
  return reinterpret_cast<std::int64_t*>(block->address(rank));
}

constexpr int kRounds = 3000;

// Message passing: plain stores, then a signal. A rank that saw the signal sees the stores.
TEST(Litmus, StoresBeforeASignalAreSeenAfterIt) {
  withGroup(
      2,
      [](Communicator& group) {
        const Block block = blockOf(group, 1024);
        const Rank peer = 1 - group.rank();
        for (std::int64_t round = 1; round <= kRounds; ++round) {
          for (int i = 1; i < 16; ++i) {
            wordsOf(block, peer)[i] = round * 100 + i;
          }
          applyWord(block->address(peer), DType::kInt64, WordOp::kSet, static_cast<std::uint64_t>(round));
          block->wake(peer);
          ASSERT_TRUE(
              block->waitUntil(0, DType::kInt64, Comparison::kGe, static_cast<std::uint64_t>(round), std::nullopt, {})
                  .isOk());
          for (int i = 1; i < 16; ++i) {
            ASSERT_EQ(wordsOf(block, group.rank())[i], round * 100 + i);
          }
          ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());  // before the next round writes here
        }
      },
      litmusOptions());
}

// Store buffering: two ranks each store their own word and then read the other's word. At least one of the two sees the
// other's store.
TEST(Litmus, TwoSetsAreSeenInOneOrder) {
  std::vector<std::array<std::uint64_t, 2>> seen(kRounds);
  withGroup(
      2,
      [&](Communicator& group) {
        const Block block = blockOf(group, static_cast<std::size_t>(kRounds) * 8);
        const Rank me = group.rank();
        for (std::size_t round = 0; round < kRounds; ++round) {
          if (round % 16 == 0) {
            ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
          }
          applyWord(block->address(me) + round * 8, DType::kUInt64, WordOp::kSet, 1);
          seen[round][static_cast<std::size_t>(me)] =
              applyWord(block->address(1 - me) + round * 8, DType::kUInt64, WordOp::kFetch, 0);
        }
      },
      litmusOptions());
  for (const auto& each : seen) {
    EXPECT_TRUE(each[0] == 1 || each[1] == 1);
  }
}

// Two ranks take steps over one word by turns: each sees the other's stores from before the step.
TEST(Litmus, StepsOfASignalCarryPlainStores) {
  withGroup(
      2,
      [](Communicator& group) {
        const Block block = blockOf(group, 64);
        const Rank me = group.rank();
        for (std::int64_t round = 1; round <= kRounds; ++round) {
          if (me == 0) {
            wordsOf(block, 1)[2] = round;
            ASSERT_TRUE(block->stepWord("put_signal", 1, 0, 0, 1, 1, std::nullopt).isOk());
            ASSERT_TRUE(block->stepWord("wait_signal", 0, 4, 1, 0, 1, std::nullopt).isOk());
            ASSERT_EQ(wordsOf(block, 0)[2], -round);
          } else {
            ASSERT_TRUE(block->stepWord("wait_signal", 1, 0, 1, 0, 0, std::nullopt).isOk());
            ASSERT_EQ(wordsOf(block, 1)[2], round);
            wordsOf(block, 0)[2] = -round;
            ASSERT_TRUE(block->stepWord("put_signal", 0, 4, 0, 1, 0, std::nullopt).isOk());
          }
        }
      },
      litmusOptions());
}

// A barrier orders plain stores of all ranks, and no rank is a whole round ahead.
TEST(Litmus, BarriersOrderPlainStores) {
  withGroup(
      3,
      [](Communicator& group) {
        const Block block = blockOf(group, 64);
        for (std::int64_t round = 1; round <= kRounds; ++round) {
          const Rank owner = static_cast<Rank>(round % 3);
          if (group.rank() == static_cast<Rank>((round + 1) % 3)) {
            wordsOf(block, owner)[0] = round;
          }
          ASSERT_TRUE(block->barrier(3, std::nullopt).isOk());
          ASSERT_EQ(wordsOf(block, owner)[0], round);
          ASSERT_TRUE(block->barrier(4, std::nullopt).isOk());
        }
      },
      litmusOptions());
}

// A section in order excludes all other sections: plain counters in two parts move together.
TEST(Litmus, OrderedSectionsExcludeEachOther) {
  withGroup(
      3,
      [](Communicator& group) {
        const Block block = blockOf(group, 64);
        for (int round = 0; round < kRounds / 3; ++round) {
          ASSERT_TRUE(block->enterOrder().isOk());
          ASSERT_EQ(wordsOf(block, 1)[0], wordsOf(block, 2)[0]);
          ++wordsOf(block, 1)[0];
          ++wordsOf(block, 2)[0];
          block->leaveOrder();
        }
        ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
        EXPECT_EQ(wordsOf(block, 2)[0], kRounds / 3 * 3);
        ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
      },
      litmusOptions());
}

// Sections in turn, a little longer than the other rank spins: the waiting rank looks a last time before it sleeps, and
// may get the turn in exactly this look.
TEST(Litmus, ATurnThatComesWithTheLastLookIsTaken) {
  std::array<std::atomic<int>, 2> entered{};
  withGroup(
      2,
      [&](Communicator& group) {
        const Block block = blockOf(group, 64);
        const auto me = static_cast<std::size_t>(group.rank());
        for (int round = 1; round <= 1000; ++round) {
          ASSERT_TRUE(block->enterOrder().isOk()) << "round " << round;
          entered[me] = round;
          const auto until = Clock::now() + std::chrono::nanoseconds(200000 + 100 * round);
          while (Clock::now() < until) {
          }
          block->leaveOrder();
          while (entered[1 - me] < round) {
            std::this_thread::yield();
          }
        }
        ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
      },
      litmusOptions());
}

// A rank waiting for the turn sleeps on the bell of its own part, in any thread of any rank.
TEST(Litmus, WhoLeavesTheOrderWakesWhoWaitsForIt) {
  withGroup(
      2,
      [](Communicator& group) {
        const Block block = blockOf(group, 64);
        if (group.rank() == 0) {
          ASSERT_TRUE(block->enterOrder().isOk());
          std::vector<std::uint32_t> rings;
          for (const Rank rank : {0, 1}) {
            const BlockWords words = SymmetricBlock::wordsOf(block->address(rank), block->bytes(), 2);
            words.sleepers().fetch_add(1);
            rings.push_back(words.bell().load());
          }
          block->leaveOrder();
          for (const Rank rank : {0, 1}) {
            const BlockWords words = SymmetricBlock::wordsOf(block->address(rank), block->bytes(), 2);
            EXPECT_GT(words.bell().load(), rings[static_cast<std::size_t>(rank)]) << "rank " << rank;
            words.sleepers().fetch_sub(1);
          }
        }
        ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
      },
      litmusOptions());
}

TEST(Litmus, AtomicsOfAllRanksAllCount) {
  withGroup(
      3,
      [](Communicator& group) {
        const Block block = blockOf(group, 64);
        const float one = 1;
        std::uint32_t oneBits = 0;
        std::memcpy(&oneBits, &one, 4);
        for (int round = 0; round < kRounds; ++round) {
          applyWord(block->address(1), DType::kInt32, WordOp::kAdd, 1);
          applyWord(block->address(1) + 8, DType::kFloat32, WordOp::kAdd, oneBits);
          applyWord(block->address(1) + 16, DType::kUInt8, WordOp::kAdd, 1);
          applyWord(block->address(1) + 17, DType::kUInt8, WordOp::kXor, 1);  // the neighbour in the same machine word
        }
        ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
        EXPECT_EQ(loadInteger(block->address(1), DType::kInt32), std::uint64_t{3 * kRounds});
        float sum = 0;
        std::memcpy(&sum, block->address(1) + 8, 4);
        EXPECT_EQ(sum, 3.0F * kRounds);
        EXPECT_EQ(loadInteger(block->address(1) + 16, DType::kUInt8), std::uint64_t{3 * kRounds % 256});
        EXPECT_EQ(loadInteger(block->address(1) + 17, DType::kUInt8), std::uint64_t{3 * kRounds % 2});
        ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
      },
      litmusOptions());
}

}  // namespace
}  // namespace shardwire::internal
