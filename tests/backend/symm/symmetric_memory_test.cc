// Symmetric blocks between ranks that are threads, and between processes: what the ranks agree on, which stores the
// ranks see, which memory is returned, and how waits end.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "backend/memory/shared_heap.h"
#include "backend/symm/deferred_release.h"
#include "backend/symm/heap_pages.h"
#include "backend/symm/symmetric_block.h"
#include "backend/symm/word_ops.h"
#include "tests/backend/thread_group.h"
#include "tests/support/random.h"
#include "tests/support/shared_value.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Block = std::shared_ptr<SymmetricMemory>;

// Symmetric memory needs shared memory, whatever transports the environment names.
Options symmetricOptions(Duration timeout = seconds(20)) {
  Options options = testOptions();
  options.transports = "";
  options.timeout = timeout;
  return options;
}

Block makeBlock(Communicator& group, std::size_t bytes, bool isZeroed = true) {
  auto made = group.makeSymmetric({.bytes = bytes, .text = "bytes", .isZeroed = isZeroed});
  EXPECT_TRUE(made.isOk()) << made.status().message();
  return made.isOk() ? *made : nullptr;
}

void withSymmetric(int n, const std::function<void(Communicator&)>& body, Duration timeout = seconds(20)) {
  withGroup(n, body, symmetricOptions(timeout));
}

// The same over processes. `body` ends each rank's part; a living rank waits for the other ranks.
void withProcesses(int n, const std::function<void(Communicator&)>& body, const std::set<Rank>& mayDie = {},
                   Duration timeout = seconds(20), LinksWhen links = LinksWhen::kAuto) {
  MemoryStore store;
  testing::runRanksAsProcesses(
      n,
      [&](Rank rank) {
        Options options = symmetricOptions(timeout);
        options.links = links;
        auto group = Communicator::create(store, rank, n, options, "test");
        ASSERT_TRUE(group.isOk()) << group.status().message();
        body(**group);
      },
      testing::kRankTimeLimit, mayDie);
}

std::atomic_ref<std::uint64_t> wordAt(SymmetricMemory& block, Rank rank, std::size_t index) {
  return std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t*>(block.address(rank))[index]);
}

void signal(SymmetricMemory& block, Rank rank, std::size_t index, std::uint64_t value) {
  applyWord(block.address(rank) + index * 8, DType::kUInt64, WordOp::kSet, value);
  block.wake(rank);
}

// ---- making and reading

void checkThatAllSeeEachOther(Communicator& group, std::size_t bytes) {
  const Block block = makeBlock(group, bytes);
  ASSERT_NE(block, nullptr);
  ASSERT_TRUE(block->reachesAll());
  std::byte* const mine = block->address(group.rank());
  for (std::size_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(mine[i], std::byte{0});
  }
  ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
  // A byte of each rank in each part, at the rank's place and at the end's.
  const auto n = static_cast<std::size_t>(group.worldSize());
  for (Rank peer = 0; peer < group.worldSize(); ++peer) {
    for (const std::size_t base : {std::size_t{0}, bytes - n}) {
      block->address(peer)[base + static_cast<std::size_t>(group.rank())] =
          static_cast<std::byte>(group.rank() * 16 + peer + 1);
    }
  }
  ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
  for (Rank owner = 0; owner < group.worldSize(); ++owner) {
    for (Rank writer = 0; writer < group.worldSize(); ++writer) {
      for (const std::size_t base : {std::size_t{0}, bytes - n}) {
        EXPECT_EQ(block->address(owner)[base + static_cast<std::size_t>(writer)],
                  static_cast<std::byte>(writer * 16 + owner + 1));
      }
    }
  }
  ASSERT_TRUE(block->barrier(1, std::nullopt).isOk());
}

TEST(SymmetricMemory, IsWrittenAndReadByAllThreads) {
  withSymmetric(4, [](Communicator& group) {
    for (const std::size_t bytes :
         {std::size_t{8}, std::size_t{5000}, std::size_t{70001}, (std::size_t{2} << 20) + 8}) {
      checkThatAllSeeEachOther(group, bytes);
    }
  });
}

TEST(SymmetricMemory, IsWrittenAndReadByAllProcesses) {
  for (const LinksWhen links : {LinksWhen::kEager, LinksWhen::kLazy}) {
    withProcesses(
        3,
        [](Communicator& group) {
          for (const std::size_t bytes :
               {std::size_t{8}, std::size_t{5000}, std::size_t{70001}, (std::size_t{2} << 20) + 8}) {
            checkThatAllSeeEachOther(group, bytes);
          }
          ASSERT_TRUE(group.symmetricBarrier().isOk());
        },
        {}, seconds(20), links);
  }
}

// More ranks than an exchange joins.
TEST(SymmetricMemory, JoinsRanksThatNothingJoinedYet) {
  withProcesses(
      18, [](Communicator& group) { checkThatAllSeeEachOther(group, 64); }, {}, seconds(40), LinksWhen::kLazy);
}

TEST(SymmetricMemory, UnequalRequestsAreOneErrorOnAllRanks) {
  std::mutex mutex;
  std::set<std::string> texts;
  withSymmetric(3, [&](Communicator& group) {
    const std::string text = group.rank() == 1 ? "float32[4, 6]" : "float32[4, 5]";
    const auto made = group.makeSymmetric({.bytes = 96, .text = text});
    EXPECT_EQ(made.status().code(), StatusCode::kMismatch);
    {
      const std::lock_guard lock(mutex);
      texts.insert(made.status().message());
    }
    checkThatAllSeeEachOther(group, 64);  // the group is usable
  });
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_EQ(
      *texts.begin(),
      "symmetric memory: all ranks must give the same, but ranks 0, 2 gave float32[4, 5], rank 1 gave float32[4, 6]");
}

TEST(SymmetricMemory, WhatOneRankCannotAskForIsAnErrorOnAll) {
  std::mutex mutex;
  std::set<std::string> texts;
  withSymmetric(3, [&](Communicator& group) {
    for (const bool isTooLarge : {false, true}) {
      SymmetricRequest request{.bytes = 64, .text = "x"};
      if (group.rank() == 2) {
        request.bytes = isTooLarge ? std::size_t{1} << 59 : 64;
        request.localError = isTooLarge ? "" : "shape must be integers";
      }
      const auto made = group.makeSymmetric(request);
      EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
      const std::lock_guard lock(mutex);
      texts.insert(made.status().message());
    }
  });
  ASSERT_EQ(texts.size(), 2U);
  for (const std::string& text : texts) {
    EXPECT_EQ(text.find("symmetric memory: rank 2: "), 0U) << text;
  }
}

// No memory can have the first size; the second would be rounded up to a part of a few bytes.
TEST(SymmetricMemory, MoreBytesThanAnyMemoryAndNoChannelsAreErrors) {
  withSymmetric(2, [](Communicator& group) {
    for (const std::size_t bytes : {(std::size_t{1} << 60) + 1, ~std::size_t{0}}) {
      expectSays(group.makeSymmetric({.bytes = bytes, .text = "x"}).status(), StatusCode::kInvalidArgument,
                 std::to_string(bytes) + " bytes are more than any memory");
    }
    expectSays(group.makeSymmetric({.bytes = 8, .text = "x", .numChannels = 0}).status(), StatusCode::kInvalidArgument,
               "0 channels; at least one is needed");
  });
}

TEST(SymmetricMemory, OtherOperationOnOneRankIsAMismatchAndNoHang) {
  withSymmetric(2, [](Communicator& group) {
    const Status status = group.rank() == 0 ? group.makeSymmetric({.bytes = 8, .text = "x"}).status()
                                            : group.exchange({.what = "symmetric free", .text = "x"}).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
  });
}

// ---- pages that the caller gives to a block

Block blockOver(Communicator& group, const std::shared_ptr<void>& pages, std::size_t bytes) {
  auto made = group.makeSymmetric({.bytes = 64,
                                   .text = "pages",
                                   .isZeroed = true,
                                   .numChannels = 2,
                                   .needsAll = true,
                                   .attached = pages,
                                   .attachedBytes = wholePages(bytes)});
  EXPECT_TRUE(made.isOk()) << made.status().message();
  return made.isOk() ? *made : nullptr;
}

// Each block over the same pages holds the pages separately.
TEST(SymmetricMemory, PagesAreHeldByEachBlockThatBringsThem) {
  withProcesses(2, [](Communicator& group) {
    const SharedHeap* heap = *SharedHeap::instance();
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    const std::uint64_t before = heap->usedBytes();
    const Rank me = group.rank();
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{300000}}) {
      auto pages = *allocatePages(bytes);
      auto* const own = static_cast<std::byte*>(pages.get());
      Block first = blockOver(group, pages, bytes);
      Block second = blockOver(group, pages, bytes);
      EXPECT_EQ(first->numChannels(), 2);
      EXPECT_EQ(first->attached(me), own);
      EXPECT_EQ(first->attached(1 - me), second->attached(1 - me));
      pages.reset();
      first.reset();
      ASSERT_TRUE(second->barrier(1, std::nullopt).isOk());
      second->attached(1 - me)[bytes - 1] = static_cast<std::byte>(me + 7);  // still writable
      ASSERT_TRUE(second->barrier(0, std::nullopt).isOk());
      EXPECT_EQ(own[bytes - 1], static_cast<std::byte>(8 - me));
      EXPECT_EQ(second->barrier(2, std::nullopt).code(), StatusCode::kInvalidArgument);
      ASSERT_TRUE(second->barrier(0, std::nullopt).isOk());
      second.reset();
    }
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    releaseUnheld();
    EXPECT_EQ(heap->usedBytes(), before);
    ASSERT_TRUE(group.symmetricBarrier().isOk());
  });
}

TEST(SymmetricMemory, AStepOfASignalEndsByTimeOrDeath) {
  withProcesses(
      3,
      [](Communicator& group) {
        const Block block = makeBlock(group, 64);
        ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
        if (group.rank() == 2) {
          ::kill(::getpid(), SIGKILL);
        }
        const Status late = block->stepWord("wait_signal", group.rank(), 0, 1, 0, 1 - group.rank(), milliseconds(20));
        EXPECT_TRUE(late.code() == StatusCode::kTimeout || late.code() == StatusCode::kPeerFailed) << late.message();
        const Status dead = block->stepWord("wait_signal", group.rank(), 0, 1, 0, 2, std::nullopt);
        EXPECT_EQ(dead.code(), StatusCode::kPeerFailed);
        EXPECT_NE(dead.message().find("rank 2"), std::string::npos) << dead.message();
        EXPECT_EQ(block->stepWord("put_signal", 3, 0, 0, 1, 3, std::nullopt).code(), StatusCode::kInvalidArgument);
        EXPECT_EQ(block->stepWord("put_signal", 0, 64, 0, 1, 0, std::nullopt).code(), StatusCode::kInvalidArgument);
      },
      {2});
}

// ---- giving back

TEST(SymmetricMemory, GoesBackWhenTheLastRankDropsIt) {
  const SharedHeap* heap = *SharedHeap::instance();
  withSymmetric(3, [&](Communicator& group) {
    (void)group.symmetricBarrier();
    const std::uint64_t before = heap->usedBytes();
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    Block block = makeBlock(group, 100000);
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    EXPECT_GE(heap->usedBytes(), before + 3 * 100000);
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    if (group.rank() != 1) {
      block.reset();
    }
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    EXPECT_GE(heap->usedBytes(), before + 3 * 100000);  // rank 1 may still write to all
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    block.reset();
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    releaseUnheld();
    EXPECT_EQ(heap->usedBytes(), before);
  });
}

TEST(SymmetricMemory, GoesBackWhenTheHeapIsFull) {
  withProcesses(2, [](Communicator& group) {
    SharedHeap* const heap = *SharedHeap::instance();
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    Block block = makeBlock(group, std::size_t{64} << 20, false);
    for (const Rank first : {0, 1}) {  // rank 0 keeps its part until rank 1 has dropped the block
      ASSERT_TRUE(group.symmetricBarrier().isOk());
      if (group.rank() == first) {
        block.reset();
      }
    }
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    if (group.rank() == 0) {
      EXPECT_EQ(numDeferred(), 1U);
      const auto most = heap->allocate(heap->reservedBytes() - (std::size_t{32} << 20));
      ASSERT_TRUE(most.isOk()) << most.status().message();
      SharedHeap::freeBlock(*most);
      EXPECT_EQ(numDeferred(), 0U);
    }
    ASSERT_TRUE(group.symmetricBarrier().isOk());
  });
}

TEST(SymmetricMemory, ManyBlocksLeaveNothing) {
  withProcesses(2, [](Communicator& group) {
    const SharedHeap* heap = *SharedHeap::instance();
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    const std::uint64_t before = heap->usedBytes();
    const int rounds = static_cast<int>(testing::numberFromEnvironment("SHARDWIRE_SYMM_ROUNDS", 3000));
    for (int i = 0; i < rounds; ++i) {
      Block block = makeBlock(group, i % 7 == 0 ? 300000 : 40, false);
      ASSERT_NE(block, nullptr);
      if (i % 2 == 0) {
        ASSERT_TRUE(block->free(std::nullopt).isOk());
        EXPECT_EQ(block->barrier(0, std::nullopt).code(), StatusCode::kInvalidArgument);
      }
    }
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    releaseUnheld();
    ASSERT_TRUE(group.symmetricBarrier().isOk());
    releaseUnheld();
    EXPECT_EQ(numDeferred(), 0U);
    EXPECT_EQ(heap->usedBytes(), before);
    ASSERT_TRUE(group.symmetricBarrier().isOk());
  });
}

TEST(SymmetricMemory, IsFreedOnceAndByAllRanksOrNone) {
  withSymmetric(2, [](Communicator& group) {
    const Block block = makeBlock(group, 64);
    expectSays(block->free(std::nullopt, group.rank() == 1 ? "the stream is busy" : ""), StatusCode::kInvalidArgument,
               "rank 1: the stream is busy");
    ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());  // all ranks still have the block
    ASSERT_TRUE(block->free(std::nullopt).isOk());
    expectSays(block->free(std::nullopt), StatusCode::kInvalidArgument, "was freed before");
    EXPECT_EQ(block->stepWord("put_signal", 0, 0, 0, 0, 0, milliseconds(20)).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(block->enterOrder().code(), StatusCode::kInvalidArgument);
  });
}

TEST(SymmetricMemory, OutlivesTheGroup) {
  withSymmetric(2, [](Communicator& group) {
    const Block block = makeBlock(group, 64);
    ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
    group.abort("enough");
    block->address(1 - group.rank())[group.rank()] = std::byte{7};
    EXPECT_EQ(block->address(1 - group.rank())[group.rank()], std::byte{7});
    EXPECT_EQ(block->waitUntil(8, DType::kInt32, Comparison::kNe, 0, seconds(15), {}).status().code(),
              StatusCode::kAborted);
  });
}

TEST(SymmetricMemory, OutlivesTheCommunicator) {
  MemoryStore store;
  std::atomic<int> done{0};
  testing::runRanksAsThreads(2, [&](Rank rank) {
    auto group = Communicator::create(store, rank, 2, symmetricOptions(), "test");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    const Block block = makeBlock(**group, 64);
    ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
    std::move(group).value().reset();
    block->address(1 - rank)[rank] = std::byte{7};
    const Status status = block->waitUntil(8, DType::kInt32, Comparison::kNe, 0, seconds(15), {}).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("the group of symmetric memory #1 was ended"), std::string::npos)
        << status.message();
    EXPECT_EQ(block->free(std::nullopt).code(), StatusCode::kAborted);
    ++done;
    await(done, 2);
  });
}

TEST(SymmetricMemory, OfARankThatDiedComesBack) {
  withProcesses(2,
                [](Communicator& group) {
                  const SharedHeap* heap = *SharedHeap::instance();
                  ASSERT_TRUE(group.symmetricBarrier().isOk());
                  const std::uint64_t before = heap->usedBytes();
                  Block block = makeBlock(group, 64);
                  ASSERT_TRUE(group.symmetricBarrier().isOk());
                  if (group.rank() == 1) {
                    ::raise(SIGKILL);
                  }
                  EXPECT_EQ(block->barrier(0, std::nullopt).code(), StatusCode::kPeerFailed);
                  block.reset();
                  for (int i = 0; i < 2000 && numDeferred() > 0; ++i) {  // the socket's hang-up comes after the death
                    ::usleep(1000);
                    releaseUnheld();
                  }
                  EXPECT_EQ(heap->usedBytes(), before);
                },
                {1});
}

// ---- waits

TEST(SymmetricWait, SeesEachSignalInTurn) {
  withSymmetric(2, [](Communicator& group) {
    const Block block = makeBlock(group, 16);
    const Rank peer = 1 - group.rank();
    for (std::uint64_t i = 1; i <= 2000; ++i) {
      if (group.rank() == 0) {
        signal(*block, peer, 0, i);
      }
      const auto seen = block->waitUntil(0, DType::kUInt64, Comparison::kGe, i, std::nullopt, {});
      ASSERT_TRUE(seen.isOk()) << seen.status().message();
      ASSERT_EQ(*seen, i);
      if (group.rank() == 1) {
        signal(*block, peer, 0, i);
      }
    }
  });
}

// wake() wakes a sleeper, and a sleeper finds a plain store within its sleeping periods.
TEST(SymmetricWait, SleepersAreWokenAndFindPlainStores) {
  withSymmetric(2, [](Communicator& group) {
    const Block block = makeBlock(group, 16);
    for (std::uint64_t i = 1; i <= 10; ++i) {
      if (group.rank() == 0) {
        std::this_thread::sleep_for(milliseconds(2));
        if (i % 2 == 0) {
          wordAt(*block, 1, 0).store(i);
        } else {
          signal(*block, 1, 0, i);
        }
      } else {
        EXPECT_TRUE(block->waitUntil(0, DType::kUInt64, Comparison::kEq, i, std::nullopt, {}).isOk());
      }
      ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
    }
  });
}

TEST(SymmetricWait, TimeoutNamesWhoDidNotSignalAndLeavesTheGroupUsable) {
  withSymmetric(3, [](Communicator& group) {
    const Block block = makeBlock(group, 32);
    if (group.rank() == 0) {
      const Rank source = 2;
      const auto seen = block->waitUntil(8, DType::kInt64, Comparison::kGe, 5, milliseconds(30), std::span(&source, 1));
      EXPECT_EQ(seen.status().code(), StatusCode::kTimeout);
      const std::string text = seen.status().message();
      EXPECT_NE(text.find("signal_wait(>= 5, int64 at byte 8 of symmetric memory #"), std::string::npos) << text;
      EXPECT_TRUE(text.ends_with("reached its timeout of 0.03 s: the signal is 0, and nothing else came from rank 2"))
          << text;
      EXPECT_EQ(block->waitUntil(8, DType::kFloat32, Comparison::kGe, 5, {}, {}).status().code(),
                StatusCode::kTypeError);
      EXPECT_EQ(block->waitUntil(28, DType::kInt64, Comparison::kGe, 5, {}, {}).status().code(),
                StatusCode::kTypeError);
      const Rank nobody = 3;
      EXPECT_EQ(block->waitUntil(8, DType::kInt64, Comparison::kGe, 5, {}, std::span(&nobody, 1)).status().code(),
                StatusCode::kInvalidArgument);
    }
    ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
  });
}

TEST(SymmetricWait, WordsRanksAndChannelsThatAreNotThereAreRefused) {
  withSymmetric(2, [](Communicator& group) {
    const Block block = makeBlock(group, 32);
    const Rank me = group.rank();
    // The words are 0, so each wait and each step that is not refused is over at once.
    const auto waitAt = [&](std::size_t offset, Rank source) {
      return block->waitUntil(offset, DType::kInt64, Comparison::kEq, 0, milliseconds(20), std::span(&source, 1))
          .status()
          .code();
    };
    EXPECT_EQ(waitAt(24, 1), StatusCode::kOk);
    EXPECT_EQ(waitAt(20, 1), StatusCode::kTypeError);
    EXPECT_EQ(waitAt(32, 1), StatusCode::kTypeError);
    EXPECT_EQ(waitAt(24, 2), StatusCode::kInvalidArgument);
    EXPECT_EQ(waitAt(24, -1), StatusCode::kInvalidArgument);
    const auto stepAt = [&](Rank owner, std::size_t offset, Rank other) {
      return block->stepWord("put_signal", owner, offset, 0, 0, other, milliseconds(20)).code();
    };
    EXPECT_EQ(stepAt(1, 28, me), StatusCode::kOk);
    EXPECT_EQ(stepAt(1, 30, me), StatusCode::kInvalidArgument);
    EXPECT_EQ(stepAt(1, 26, me), StatusCode::kInvalidArgument);
    EXPECT_EQ(stepAt(1, 32, me), StatusCode::kInvalidArgument);
    EXPECT_EQ(stepAt(-1, 28, me), StatusCode::kInvalidArgument);
    EXPECT_EQ(stepAt(1, 28, 2), StatusCode::kInvalidArgument);
    EXPECT_EQ(block->barrier(-1, std::nullopt).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(block->barrier(block->numChannels(), std::nullopt).code(), StatusCode::kInvalidArgument);
    ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
  });
}

TEST(SymmetricWait, BarrierTimeoutNamesTheLateRankOnAllOthers) {
  std::atomic<int> ready{0};
  std::atomic<int> done{0};
  withSymmetric(3, [&](Communicator& group) {
    const Block block = makeBlock(group, 32);
    ASSERT_NE(block, nullptr);
    ++ready;
    await(ready, 3);  // the timeout fails the group: no rank may still make the block
    if (group.rank() != 1) {
      const Status status = block->barrier(2, group.rank() == 0 ? seconds(1) : seconds(15));
      EXPECT_EQ(status.code(), StatusCode::kTimeout);
      EXPECT_NE(status.message().find("rank 1 did not arrive"), std::string::npos) << status.message();
      EXPECT_EQ(group.status().code(), StatusCode::kTimeout);
      ++done;
    } else {
      await(done, 2);
    }
  });
}

TEST(SymmetricWait, DeathIsNamedInSignalWaitBarrierAndOrder) {
  for (const int kind : {0, 1, 2}) {
    withProcesses(3,
                  [&](Communicator& group) {
                    const Block block = makeBlock(group, 32);
                    if (group.rank() == 2) {
                      ASSERT_TRUE(block->enterOrder().isOk());
                    }
                    ASSERT_TRUE(block->barrier(0, std::nullopt).isOk());
                    if (group.rank() == 2) {
                      ::raise(SIGKILL);
                    }
                    const Status status =
                        kind == 0   ? block->waitUntil(0, DType::kInt32, Comparison::kNe, 0, std::nullopt, {}).status()
                        : kind == 1 ? block->barrier(0, std::nullopt)
                                    : block->enterOrder();
                    EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
                    EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
                    const Status next = block->barrier(1, std::nullopt);
                    EXPECT_EQ(next.message(), group.barrier().status().message());
                    EXPECT_NE(next.message().find("failed before this call"), std::string::npos) << next.message();
                  },
                  {2});
  }
}

TEST(SymmetricWait, ATurnDoesNotNeedARankThatLeft) {
  std::atomic<int> ready{0};
  std::atomic<int> waits{0};
  std::atomic<bool> hasLeft{false};
  withSymmetric(3, [&](Communicator& group) {
    const Block block = makeBlock(group, 32);
    ASSERT_NE(block, nullptr);
    ++ready;
    await(ready, 3);
    if (group.rank() == 2) {
      group.end();
      hasLeft = true;
      return;
    }
    while (!hasLeft) {
      std::this_thread::yield();
    }
    if (group.rank() == 0) {
      EXPECT_TRUE(block->enterOrder().isOk());
      ++waits;
      await(waits, 2);
      ::usleep(50000);  // rank 1 waits so long that it looks for the rank that delays it
      block->leaveOrder();
    } else {
      await(waits, 1);
      ++waits;
      const Status turn = block->enterOrder();
      EXPECT_TRUE(turn.isOk()) << turn.message();
      block->leaveOrder();
    }
    EXPECT_TRUE(group.status().isOk()) << group.status().message();
    ++ready;
    await(ready, 5);
  });
}

TEST(SymmetricWait, StoppedRankIsNamedAtTheTimeout) {
  testing::SharedValue<std::atomic<pid_t>> stopped;
  withProcesses(
      2,
      [&](Communicator& group) {
        const Block block = makeBlock(group, 32);
        if (group.rank() == 1) {
          stopped->store(::getpid());
          ::raise(SIGSTOP);
          return;
        }
        while (stopped->load() == 0) {
          ::usleep(100);
        }
        testing::awaitStopped(stopped->load());
        for (const bool isBarrier : {false, true}) {
          const Status status =
              isBarrier ? block->barrier(0, milliseconds(200))
                        : block->waitUntil(0, DType::kInt32, Comparison::kNe, 0, milliseconds(200), {}).status();
          EXPECT_EQ(status.code(), StatusCode::kTimeout);
          EXPECT_NE(status.message().find("the process of rank 1 is stopped"), std::string::npos) << status.message();
        }
        ::kill(stopped->load(), SIGKILL);
      },
      {1});
}

// Ranks on two hosts: the block is made, only the part of the rank on the other host cannot be addressed, and barriers
// go the ordinary way.
TEST(SymmetricMemory, BetweenHostsSaysWhatCannotBeAddressed) {
  MemoryStore store;
  testing::runRanksAsProcesses(3, [&](Rank rank) {
    Options options = symmetricOptions();
    options.hostId = rank == 2 ? "other" : "one";
    auto group = Communicator::create(store, rank, 3, options, "test");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    const Block block = makeBlock(**group, 64);
    ASSERT_NE(block, nullptr);
    EXPECT_FALSE(block->reachesAll());
    EXPECT_EQ(block->address(2) == nullptr, rank != 2);
    EXPECT_EQ(block->address(0) == nullptr, rank == 2);
    EXPECT_EQ(block->barrier(0, std::nullopt), Status(StatusCode::kUnsupported, block->whyNot(rank == 2 ? 0 : 2)));
    if (rank == 0) {
      EXPECT_NE(block->whyNot(2).find("rank 2 is reached by tcp: its memory cannot be addressed"), std::string::npos)
          << block->whyNot(2);
    }
    EXPECT_TRUE((*group)->symmetricBarrier().isOk());
  });
}

// By rank and owner. Ranks 0 to 2 are of one host, rank 3 is of another.
TEST(CommonOwner, IsTheLowestRankThatAllRanksOfTheHostCanAddress) {
  AddressTable table = {
      {true, true, true, false}, {true, true, true, false}, {true, true, true, false}, {false, false, false, true}};
  const auto owners = [&] {
    std::vector<Rank> found;
    for (Rank rank = 0; rank < 4; ++rank) {
      found.push_back(commonOwner(table, rank));
    }
    return found;
  };
  EXPECT_EQ(owners(), (std::vector<Rank>{0, 0, 0, 3}));
  table[1][0] = false;
  EXPECT_EQ(owners(), (std::vector<Rank>{1, 1, 1, 3}));
  table[0][1] = false;  // ranks 0 and 1 both address rank 2's part
  EXPECT_EQ(owners(), (std::vector<Rank>{2, 2, 2, 3}));
  table[1][2] = false;  // rank 1 addresses no other part, and rank 2 addresses the part of rank 1
  EXPECT_EQ(owners(), (std::vector<Rank>{-1, -1, -1, 3}));
  table[2][1] = false;
  EXPECT_EQ(owners(), (std::vector<Rank>{0, 1, 0, 3}));
}

}  // namespace
}  // namespace shardwire::internal
