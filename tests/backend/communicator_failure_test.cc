// Callbacks that wait, and failed operations, between ranks that are threads. First callbacks that wait for operations
// or throw. Then failures: no memory, lapsed messages, different operations, timeouts, abort, and at last the end of a
// group that is still held or inside a call.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "backend/communicator/communicator_impl.h"
#include "shardwire/interrupt.h"
#include "tests/backend/exec/fake_engine.h"
#include "tests/backend/thread_group.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// ---- waits

// The work that the check below waits for, on the thread that waits for the work.
std::atomic<Work*> inCheck{nullptr};
std::atomic<bool> isChecking{false};

TEST(Communicator, RefusesARecvFromAnyRankWhereThereIsNone) {
  withGroup(1, [](Communicator& group) {
    std::vector<std::int64_t> value(1);
    expectSays(group.recv(viewOf(value), kAnySource, 0).status(), StatusCode::kInvalidArgument,
               "recv from any rank on rank 0 of 1");
  });
}

TEST(Wait, IsNoTimeoutWhenTheOperationEndsDuringTheCheckForSignals) {
  static constexpr auto kWait = milliseconds(500);  // the check runs after 50
  isChecking.store(false);
  setInterruptCheck([] {
    if (Work* const work = inCheck.exchange(nullptr)) {
      isChecking.store(true);
      while (!work->isDone()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      std::this_thread::sleep_for(kWait);
    }
    return false;
  });
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> values(4, group.rank());
    if (group.rank() == 1) {
      while (!isChecking.load()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      expectOk(group.send(viewOf(values), 0, 3));
      return;
    }
    auto work = group.recv(viewOf(values), 1, 3);
    ASSERT_TRUE(work.isOk());
    inCheck.store(work->get());
    const Status status = (*work)->wait(Clock::now() + kWait);
    EXPECT_TRUE(status.isOk()) << status.message();
    EXPECT_EQ(values[0], 1);
  });
  setInterruptCheck(nullptr);
}

// ---- callbacks

// Waits for a callback like a c10 future, and drives no operation.
Status waitAsleep(Work& work) {
  std::promise<Status> done;
  work.onDone([&](const Status& status) { done.set_value(status); });
  return done.get_future().get();
}

TEST(Callbacks, MayWaitForAnotherOperationWithoutDrivingIt) {
  withGroup(3, [&](Communicator& group) {
    for (int round = 0; round < 5; ++round) {
      std::vector<std::int64_t> first(10, 1);
      std::vector<std::int64_t> second(10, 2);
      std::vector<std::int64_t> third(10, 3);
      if (group.rank() != 0) {
        // Late, so that rank 0's callbacks run on rank 0's progress thread, and operations started by the callbacks are
        // not over at once.
        std::this_thread::sleep_for(milliseconds(5));
      }
      auto work = group.allReduce(viewOf(first), ReduceOp::kSum);
      ASSERT_TRUE(work.isOk());
      std::promise<Status> last;
      (*work)->onDone([&](const Status&) {
        if (group.rank() != 0) {
          std::this_thread::sleep_for(milliseconds(5));
        }
        auto nested = group.allReduce(viewOf(second), ReduceOp::kSum);
        nested.value()->onDone([&](const Status&) {
          if (group.rank() != 0) {
            std::this_thread::sleep_for(milliseconds(5));
          }
          auto deepest = group.allReduce(viewOf(third), ReduceOp::kSum);
          last.set_value(waitAsleep(**deepest));
        });
        EXPECT_TRUE(waitAsleep(**nested).isOk());
      });
      auto done = last.get_future();
      ASSERT_EQ(done.wait_for(seconds(10)), std::future_status::ready);
      EXPECT_TRUE(done.get().isOk());
      EXPECT_EQ(first[0] + second[0] + third[0], 3 * (1 + 2 + 3));
    }
  });
}

// The same on the thread of a caller that waits for another operation.
TEST(Callbacks, OfAWaiterMayWaitForAnotherOperation) {
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> first(10, 1);
    std::vector<std::int64_t> second(10, 2);
    std::promise<Status> nestedDone;
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    auto work = group.allReduce(viewOf(first), ReduceOp::kSum);
    ASSERT_TRUE(work.isOk());
    (*work)->onDone([&](const Status&) {
      if (group.rank() == 1) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      auto nested = group.allReduce(viewOf(second), ReduceOp::kSum);
      nestedDone.set_value(waitAsleep(**nested));
    });
    expectOk(work);
    EXPECT_TRUE(nestedDone.get_future().get().isOk());
    EXPECT_EQ(second[0], 4);
  });
}

// On rank 0 the callbacks run on the progress thread, on rank 1 on the thread of a waiter.
TEST(Callbacks, ThatThrowTakeNothingFromTheOthers) {
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> first(10, 1);
    std::vector<std::int64_t> second(10, 1);
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(20));
    }
    auto work = group.allReduce(viewOf(first), ReduceOp::kSum);
    ASSERT_TRUE(work.isOk());
    std::promise<void> called;
    std::promise<void> calledLast;
    (*work)->onDone([](const Status&) { throw std::runtime_error("the user's callback failed"); });
    (*work)->onDone([](const Status&) { throw 7; });
    (*work)->onDone([&](const Status&) { called.set_value(); });
    if (group.rank() == 1) {
      EXPECT_TRUE((*work)->wait().isOk());
    }
    ASSERT_EQ(called.get_future().wait_for(seconds(10)), std::future_status::ready);
    (*work)->onDone([](const Status&) { throw std::runtime_error("the user's callback failed"); });  // here and now
    auto next = group.allReduce(viewOf(second), ReduceOp::kSum);
    ASSERT_TRUE(next.isOk());
    (*next)->onDone([&](const Status&) { calledLast.set_value(); });
    ASSERT_EQ(calledLast.get_future().wait_for(seconds(10)), std::future_status::ready);
    EXPECT_EQ(first[0] + second[0], 4);
  });
}

// ---- failure

// The root's tensor is one number expanded to many elements: no memory anywhere holds a copy of the tensor. The other
// rank only points somewhere.
TEST(Failure, WithoutMemoryForACopyTheOperationFailsInItsPlaceOnAllRanks) {
  if (testOptions().transports == "rdma") {
    // Where a kernel before 5.12 or without RDMA's netlink runs, libibverbs marks the range MADV_DONTFORK, finds holes
    // in the range, and leaves the marks.
    GTEST_SKIP() << "rank 1 would register 128 TiB that are not there";
  }
  constexpr std::int64_t kElements = std::int64_t{1} << 44;
  constexpr std::string_view kLacking = "needs memory for copies that rank 0 does not have";
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> before(1000, 1);
    std::vector<std::int64_t> number(1, 7);
    const auto earlier = group.allReduce(viewOf(before), ReduceOp::kSum);
    TensorView huge = TensorView::contiguous(number.data(), DType::kInt64, {kElements});
    if (group.rank() == 0) {
      huge.strides[0] = 0;
    }
    auto work = group.broadcast(huge, 0);
    ASSERT_TRUE(earlier.isOk()) << earlier.status().message();
    ASSERT_TRUE(work.isOk() || group.rank() == 1) << work.status().message();
    const Status earlierStatus = (*earlier)->wait();
    const Status status = work.isOk() ? (*work)->wait() : work.status();
    // Rank 0 gives up when its own part of the earlier operation is over. Rank 1 may be notified before rank 1 has
    // received all of the earlier operation, or called.
    EXPECT_TRUE(earlierStatus.isOk() ||
                (group.rank() == 1 && earlierStatus.message().find(kLacking) != std::string::npos))
        << earlierStatus.message();
    EXPECT_EQ(status.code(), StatusCode::kSystem);
    EXPECT_NE(status.message().find(kLacking), std::string::npos) << status.message();
  });
}

// Rank 2 comes after rank 0 has given up, and then leaves normally.
TEST(Failure, AMessageThatLapsedLeavesNothingBehind) {
  MemoryStore store;
  std::atomic<int> lapsed{0};
  std::atomic<int> left{0};
  testing::runRanksAsThreads(3, [&](Rank rank) {
    std::unique_ptr<Communicator> group = Communicator::create(store, rank, 3, testOptions(), "test").value();
    std::vector<std::int64_t> value(1, rank);
    const CallOptions lapsing{.timeout = milliseconds(20), .lapses = true};
    if (rank == 0) {
      const auto missed = group->recv(viewOf(value), 2, 7, lapsing);
      ASSERT_TRUE(missed.isOk());
      EXPECT_EQ((*missed)->wait().code(), StatusCode::kTimeout);
      EXPECT_EQ((*missed)->status().code(), StatusCode::kTimeout);
      ++lapsed;
      expectOk(group->recv(viewOf(value), 2, 7));
      EXPECT_EQ(value[0], 12);
    } else if (rank == 2) {
      await(lapsed, 1);
      for (const std::int64_t each : {11, 12}) {
        value[0] = each;
        expectOk(group->send(viewOf(value), 0, 7));
      }
    }
    expectOk(group->barrier());
    if (rank == 2) {
      group = nullptr;
      ++left;
      return;
    }
    await(left, 1);
    for (int round = 0; round < 10; ++round) {
      std::this_thread::sleep_for(milliseconds(rank));  // rank 0 waits, and looks for ranks that left
      expectOk(rank == 0 ? group->recv(viewOf(value), 1, 8) : group->send(viewOf(value), 0, 8));
    }
    EXPECT_TRUE(group->status().isOk()) << group->status().message();
    // No rank leaves while the other still needs the rank.
    expectOk(rank == 0 ? group->send(viewOf(value), 1, 9) : group->recv(viewOf(value), 0, 9));
  });
}

TEST(Failure, DifferentOperationsAreNamedOnBothRanks) {
  std::mutex mutex;
  std::vector<std::string> texts(2);
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> values(100, 1);
    const auto view = TensorView::contiguous(values.data(), DType::kInt64, {group.rank() == 0 ? 100 : 50});
    auto work = group.allReduce(view, ReduceOp::kSum);
    ASSERT_TRUE(work.isOk());
    const Status status = (*work)->wait();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
    EXPECT_NE(status.message().find(
                  "rank 0 called all_reduce(int64[100], sum), but rank 1 called all_reduce(int64[50], sum)"),
              std::string::npos)
        << status.message();
    EXPECT_FALSE(group.barrier().isOk());  // poisoned
    std::lock_guard lock(mutex);
    texts[static_cast<std::size_t>(group.rank())] = status.message();
  });
}

// Each of three ranks disagrees with each: the rank that asks last must not wait for ranks that gave up already.
TEST(Failure, ThreeDifferentOperationsEndOnAllRanks) {
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> looked{0};
    std::atomic<int> ended{0};
    withGroup(3, [&](Communicator& group) {
      std::vector<std::int64_t> values(30, 1);
      const auto view = TensorView::contiguous(values.data(), DType::kInt64, {10 * (group.rank() + 1)});
      EXPECT_TRUE(group.status().isOk());
      ++looked;
      while (looked < 3) {
        std::this_thread::yield();  // two ranks that disagree notify the third, which may not have looked yet
      }
      std::this_thread::sleep_for(milliseconds(round % 3 == group.rank() ? 3 : 0));
      auto work = group.allReduce(view, ReduceOp::kSum);
      const Status status = work.isOk() ? (*work)->wait() : work.status();
      EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
      EXPECT_EQ(group.status().code(), StatusCode::kMismatch);
      ++ended;
      while (ended < 3) {
        std::this_thread::yield();  // no rank leaves: only the notices of the other ranks end the wait
      }
    });
  }
}

TEST(Failure, ATimeoutNamesTheAbsentRankAndPoisonsTheGroup) {
  std::atomic<int> started{0};
  withGroup(3, [&](Communicator& group) {
    if (group.rank() == 1) {
      while (group.status().isOk()) {
        std::this_thread::yield();  // until the notices of the other ranks arrive: possibly after the other ranks
                                    // return
      }
      std::vector<std::int64_t> values(10);
      auto work = group.allReduce(viewOf(values), ReduceOp::kSum);
      EXPECT_FALSE(work.isOk() && (*work)->wait().isOk());
      return;
    }
    std::vector<std::int64_t> values(10);
    ++started;
    await(started, 2);
    const auto before = Clock::now();
    auto work = group.allReduce(viewOf(values), ReduceOp::kSum, {.timeout = seconds(3)});
    ASSERT_TRUE(work.isOk());
    const Status status = (*work)->wait();
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_NE(status.message().find("rank 1 did not arrive"), std::string::npos) << status.message();
    EXPECT_LE(Clock::now() - before, seconds(10));  // not the group's 20 s
  });
}

TEST(Failure, AbortUnblocksWaitersAndReachesPeers) {
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> values(10);
    if (group.rank() == 0) {
      const std::jthread aborter([&] {
        std::this_thread::sleep_for(milliseconds(100));  // so the other thread mostly waits
        group.abort("enough");
        group.abort("again");
      });
      auto work = group.recv(viewOf(values), 1, 0);
      const Status status = work.isOk() ? (*work)->wait() : work.status();
      EXPECT_EQ(status.code(), StatusCode::kAborted);
      EXPECT_NE(status.message().find("enough"), std::string::npos) << status.message();
    } else {
      auto work = group.recv(viewOf(values), 0, 0);
      const Status status = work.isOk() ? (*work)->wait() : work.status();
      EXPECT_EQ(status.code(), StatusCode::kAborted);
      EXPECT_NE(status.message().find("rank 0 gave up"), std::string::npos) << status.message();
    }
  });
}

// The wait of the call in progress has the error. The next call has the error itself.
TEST_F(EngineTest, AFailureThatComesDuringTheCallOfAMessageIsTheErrorOfItsWait) {
  CommunicatorImpl group(engine_, {});
  std::vector<std::int64_t> value(1);
  const std::string why = "rank 1 gave up: the reason";
  engine_->locked([&](const GroupState&) {
    onPoll_ = [&, caller = std::this_thread::get_id(), isSent = false]() mutable {
      if (std::this_thread::get_id() == caller && !std::exchange(isSent, true)) {
        const FailFrame fail{.code = static_cast<std::uint32_t>(StatusCode::kAborted)};
        from_.sent(Lane::kControl).push_back(frameOf(fail, bytesOf(why)));
      }
    };
  });
  const Result<WorkPtr> work = group.recv(viewOf(value), 1, 0, {});
  ASSERT_TRUE(work.isOk()) << work.status().message();
  const Status status = (*work)->wait();
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_NE(status.message().find("recv("), std::string::npos) << status.message();
  EXPECT_EQ(group.recv(viewOf(value), 1, 0, {}).status().code(), StatusCode::kAborted);
  engine_->locked([&](const GroupState&) { onPoll_ = nullptr; });
}

// An object still holds a group, here a compiled op: nothing stays open, and the peers see the rank's departure.
TEST(Failure, AGroupThatEndsWithACompiledOpInHandIsLeft) {
  MemoryStore store;
  std::atomic<int> left{0};
  std::atomic<int> failed{0};
  testing::runRanksAsThreads(2, [&](Rank rank) {
    auto group = Communicator::create(store, rank, 2, testOptions(), "test");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    LocalSpec spec;
    spec.tensors.push_back({.name = "", .shape = Dims{2, 8}, .dtype = DType::kInt64});
    spec.inputs.push_back({.localShape = {1, 8}, .slices = {{.slice = {{rank, 0}, {1, 8}}, .localOffset = {0, 0}}}});
    spec.outputs.push_back(
        {.localShape = {1, 8}, .slices = {{.slice = {{1 - rank, 0}, {1, 8}}, .localOffset = {0, 0}}}});
    auto op = (*group)->compileOp(spec);
    ASSERT_TRUE(op.isOk()) << op.status().message();
    std::vector<std::int64_t> values(8);
    std::vector<std::int64_t> got(8);
    const auto input = TensorView::contiguous(values.data(), DType::kInt64, {1, 8});
    const auto output = TensorView::contiguous(got.data(), DType::kInt64, {1, 8});
    if (rank == 1) {
      group->reset();
      ++left;
      await(failed, 1);
    } else {
      await(left, 1);
      auto work = (*op)->run({&input, 1}, {&output, 1});
      const Status status = work.isOk() ? (*work)->wait() : work.status();
      EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
      EXPECT_NE(status.message().find("left the group"), std::string::npos) << status.message();
      ++failed;
    }
    const auto late = (*op)->run({&input, 1}, {&output, 1});
    EXPECT_FALSE(late.isOk()) << "the group ended";
  });
}

// The group has ended when end() returns, and ended normally, even if another thread holds the group, inside a call or
// not: the other rank is notified of no abort.
TEST(Failure, AGroupEndsWhileAnotherThreadIsInsideACall) {
  MemoryStore store;
  std::atomic<int> ended{0};
  testing::runRanksAsThreads(2, [&](Rank rank) {
    const std::shared_ptr<Communicator> group = Communicator::create(store, rank, 2, testOptions(), "test").value();
    if (rank == 1) {
      await(ended, 1);
      EXPECT_TRUE(group->status().isOk()) << group->status().message();
      group->end();
    } else {
      std::atomic<int> begun{0};
      std::thread inside([&, group] {
        begun = 1;
        EXPECT_EQ(group->compileOp({}).status().code(), StatusCode::kAborted);
      });
      await(begun, 1);
      group->end();
      EXPECT_EQ(group->status().code(), StatusCode::kAborted);
      EXPECT_EQ(group->barrier().status().code(), StatusCode::kAborted);
      ended = 1;
      inside.join();
      group->end();  // and again
    }
    const auto anew = Communicator::create(store, rank, 2, testOptions(), "test");
    ASSERT_TRUE(anew.isOk()) << anew.status().message();
    expectOk((*anew)->barrier());
  });
}

// The end of the group ends the operation, whose callback ends the group as well: on the same thread.
TEST(Failure, ACallbackOfAnOperationThatTheEndOfItsGroupEndsMayEndTheGroup) {
  MemoryStore store;
  std::atomic<int> called{0};
  testing::runRanksAsThreads(2, [&](Rank rank) {
    const std::shared_ptr<Communicator> group = Communicator::create(store, rank, 2, testOptions(), "test").value();
    if (rank == 0) {
      std::vector<std::int64_t> values(4);
      const auto work = group->recv(viewOf(values), 1, 0);
      ASSERT_TRUE(work.isOk()) << work.status().message();
      (*work)->onDone([&](const Status& status) {
        EXPECT_EQ(status.code(), StatusCode::kAborted) << status.message();
        group->end();
        ++called;
      });
      group->end();
    }
    await(called, 1);
  });
}

// The end of the group waits for a callback on the progress thread, and this callback ends the group as well.
TEST(Failure, ACallbackMayEndTheGroupWhileAnotherThreadDoes) {
  MemoryStore store;
  std::atomic<int> inside{0};
  testing::runRanksAsThreads(2, [&](Rank rank) {
    const std::shared_ptr<Communicator> group = Communicator::create(store, rank, 2, testOptions(), "test").value();
    std::vector<std::int64_t> values(4);
    if (rank == 0) {
      const auto work = group->recv(viewOf(values), 1, 0);
      ASSERT_TRUE(work.isOk()) << work.status().message();
      (*work)->onDone([&](const Status& status) {
        EXPECT_TRUE(status.isOk()) << status.message();
        ++inside;
        std::this_thread::sleep_for(milliseconds(300));  // the other thread is in end() by then
        group->end();
      });
      await(inside, 1);
      group->end();
      EXPECT_EQ(group->status().code(), StatusCode::kAborted);
    } else {
      std::this_thread::sleep_for(milliseconds(100));  // by then rank 0's progress thread has the message to take
      expectOk(group->send(viewOf(values), 0, 0));
      await(inside, 1);
    }
  });
}

TEST(Failure, AWaitThatEndsFirstLeavesTheOperationGoing) {
  std::atomic<int> waited{0};
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> values(10);
    if (group.rank() == 1) {
      await(waited, 1);
    }
    auto work = group.allReduce(viewOf(values), ReduceOp::kSum);
    ASSERT_TRUE(work.isOk());
    if (group.rank() == 0) {
      EXPECT_EQ((*work)->wait(Clock::now() + milliseconds(20)).code(), StatusCode::kTimeout);
      EXPECT_FALSE((*work)->isDone());
      ++waited;
    }
    EXPECT_TRUE((*work)->wait().isOk());
  });
}

}  // namespace
}  // namespace shardwire::internal
