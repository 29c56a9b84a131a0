// The engine of rank 0, with the test in the place of rank 1: how the engine handles frames that no sound peer sends,
// and how it reports errors.
#include "backend/exec/engine.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backend/exec/one_sided_requests.h"
#include "backend/exec/process_failures.h"
#include "tests/backend/exec/fake_engine.h"

namespace shardwire::internal {
namespace {

// The groups of a process are called in the order in which they were made: the engine's group is called second.
class SecondGroupTest : public EngineTest {
 protected:
  SecondGroupTest()
      : EngineTest([this](const void* process) {
          addProcessGroup({process, &first_}, [this] { firstIsCalled_(); });
        }) {}
  ~SecondGroupTest() override { removeProcessGroup(first_); }

  const ProcessGroup first_{progressBell_.get(), &first_};
  std::function<void()> firstIsCalled_ = [] {};
};

// Another thread reports a failure of another group while this thread ends the group: the rest of the connections
// leaves by the wires.
TEST_F(SecondGroupTest, PollsNoWireOnceItsGroupIsClosed) {
  const ProcessGroup failed{progressBell_.get(), this};
  const int before = polls_;
  addProcessFailure({this, failed.group}, "a rank died, in another process");
  EXPECT_EQ(processFailureBeside(first_), "");
  addProcessFailure(failed, "a rank died");
  EXPECT_EQ(processFailureBeside(first_), "a rank died");
  EXPECT_GT(polls_, before);
  int atTheEnd = 0;
  firstIsCalled_ = [&] {
    engine_->shutdown();
    atTheEnd = polls_;
  };
  addProcessFailure(failed, "another rank died");
  EXPECT_GT(atTheEnd, 0);
  EXPECT_EQ(polls_, atTheEnd);
  removeProcessGroup(failed);
  removeProcessGroup({this, failed.group});
}

// A process that goes on after a death makes new groups, perhaps while the failed group still exists.
TEST(ProcessFailures, OfEarlierDoNotCountInALaterGroup) {
  const int process = 0;
  const auto keyOf = [&](std::uintptr_t number) {
    return ProcessGroup{&process, reinterpret_cast<const void*>(number)};
  };
  int called = 0;
  addProcessGroup(keyOf(1), [] {});
  addProcessGroup(keyOf(2), [&] { ++called; });
  addProcessFailure(keyOf(1), "a rank died");
  addProcessGroup(keyOf(3), [&] { ++called; });
  EXPECT_EQ(processFailureBeside(keyOf(2)), "a rank died");
  EXPECT_EQ(processFailureBeside(keyOf(3)), "");
  EXPECT_EQ(processFailureBeside(keyOf(3), true), "");
  addProcessFailure(keyOf(2), "another rank died");
  EXPECT_EQ(processFailureBeside(keyOf(3)), "another rank died");
  EXPECT_EQ(called, 2);
  for (const std::uintptr_t number : {1, 2, 3}) {
    removeProcessGroup(keyOf(number));
  }
}

// A group that is shut down has got over its failure. A process that ends may end because of the failure.
TEST(ProcessFailures, CountUntilTheirOwnGroupIsShutDown) {
  std::array<int, 3> groups{};
  const auto keyOf = [&](std::size_t number) { return ProcessGroup{&groups, &groups[number]}; };
  for (const std::size_t number : {0, 1, 2}) {
    addProcessGroup(keyOf(number), [] {});
  }
  addProcessFailure(keyOf(0), "a rank died");
  removeProcessGroup(keyOf(2));
  EXPECT_EQ(processFailureBeside(keyOf(1)), "a rank died");
  removeProcessGroup(keyOf(0));
  EXPECT_EQ(processFailureBeside(keyOf(1)), "");
  EXPECT_EQ(processFailureBeside(keyOf(1), true), "a rank died");
  removeProcessGroup(keyOf(1));
}

// An order by addresses would differ from run to run.
TEST(ProcessFailures, AreReportedToTheOldestGroupFirst) {
  std::array<int, 4> groups{};
  std::vector<std::size_t> called;
  for (const std::size_t number : {2, 3, 0, 1}) {
    addProcessGroup({&called, &groups[number]}, [&called, number] { called.push_back(number); });
  }
  addProcessFailure({&called, &groups[3]}, "a rank died");
  EXPECT_EQ(called, (std::vector<std::size_t>{2, 0, 1}));
  for (const int& group : groups) {
    removeProcessGroup({&called, &group});
  }
}

// Otherwise the peer would only see that this rank left.
TEST_F(EngineTest, StaysUntilAPeerWithAFullLaneHasTheReason) {
  engine_->locked([&](const GroupState&) { to_->maxFrames = 0; });
  engine_->abort({StatusCode::kAborted, "the reason"});
  int polls = 0;
  std::string reason;
  engine_->locked([&](const GroupState&) {
    onPoll_ = [&] {
      to_->maxFrames = ++polls < 5 ? 0 : 64;
      for (const Bytes& frame : to_->sent(Lane::kControl)) {
        if (const auto fail = readFrame<FailFrame>(frame)) {
          reason = textOf(fail->payload);
        }
      }
    };
  });
  engine_->shutdown();
  EXPECT_EQ(reason, "rank 0 gave up: the reason");
}

// A long read waits for no peer, so no ring announces the rest.
TEST_F(EngineTest, LeavesWhatWaitsForNobodyToTheProgressThreadAtOnce) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;  // in pieces of 4 MiB
  std::vector<std::byte> theirs(kBytes, std::byte{7});
  std::vector<std::byte> mine(kBytes);
  const auto address = reinterpret_cast<std::uint64_t>(theirs.data());
  engine_->locked([&](const GroupState&) { from_.exposed.push_back({address, kBytes}); });
  put(Lane::kControl, frameOf(OfferFrame{.about = {.message = 0, .messageBytes = kBytes, .tag = 3},
                                         .reach = static_cast<std::uint32_t>(Reach::kDirect),
                                         .space = kFirstExposure,
                                         .address = address}));
  auto recv = std::make_shared<PointRecv>(1, 3, mine);
  recv->description = std::make_shared<const std::string>("recv");
  const std::uint32_t before = progressBell_->rings();
  ASSERT_TRUE(engine_->submitPoint(recv, [&](PointToPoint& points) { points.start(recv); }).isOk());
  EXPECT_GT(progressBell_->rings(), before);
  EXPECT_TRUE(recv->wait(Clock::now() + std::chrono::seconds(20)).isOk());
  EXPECT_EQ(mine, theirs);
}

TEST_F(EngineTest, WritesNoMessageIntoTheTensorOfARecvThatFailed) {
  constexpr std::string_view kOverwritten = "mine again";
  std::string tensor(kOverwritten.size(), ' ');
  auto recv = std::make_shared<PointRecv>(1, 3, std::as_writable_bytes(std::span(tensor)));
  recv->description = std::make_shared<const std::string>("recv");
  ASSERT_TRUE(engine_->submitPoint(recv, [&](PointToPoint& points) { points.start(recv); }).isOk());
  engine_->abort({StatusCode::kAborted, "the reason"});
  EXPECT_EQ(recv->wait(kNoDeadline).code(), StatusCode::kAborted);
  tensor = kOverwritten;
  put(Lane::kControl,
      frameOf(EagerFrame{{.message = 0, .messageBytes = tensor.size(), .tag = 3}}, bytesOf("a late one")));
  while (engine_->locked([&](const GroupState&) { return !from_.sent(Lane::kControl).empty(); })) {
    engine_->memory().help();
  }
  EXPECT_EQ(tensor, kOverwritten);
}

TEST_F(EngineTest, NamesAndNotifiesThePeerOfAControlFrameThatCannotBeRead) {
  put(Lane::kControl, Bytes(5));
  const Status status = statusOnceFailed();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(),
            "rank 1 sent a frame of 5 bytes on the control lane that cannot be read: a bug, or a stray write");
  EXPECT_EQ(textOfFirst<FailFrame>(), "rank 0 gave up: " + status.message());
}

// The number of the operation is taken, and the peers wait for this operation.
TEST_F(EngineTest, FailsTheGroupWhereAnOperationCannotBeStarted) {
  const auto earlier = submitExchange(1);
  failNextPoll();
  auto tensors = std::make_shared<int>();
  const std::weak_ptr<int> kept = tensors;
  const std::shared_ptr<Activity> refused = exchangeOf(2);
  refused->keepAlive = std::move(tensors);
  const Status status = engine_->submit(std::span(&refused, 1), Duration::zero());
  EXPECT_EQ(status.code(), StatusCode::kSystem);
  EXPECT_TRUE(status.message().starts_with("an operation could not be started on rank 0")) << status.message();
  EXPECT_TRUE(refused->isDone());
  EXPECT_TRUE(kept.expired());
  EXPECT_EQ(statusOnceFailed(), status);
  EXPECT_TRUE(textOfFirst<FailFrame>().value_or("").starts_with("rank 0 gave up: an operation could not be started"));
  EXPECT_TRUE(earlier->isDone());
  EXPECT_EQ(earlier->status().code(), StatusCode::kSystem);
}

TEST_F(EngineTest, ReleasesTheTensorsOfAnOperationThatAFailedGroupRefuses) {
  engine_->abort({StatusCode::kAborted, "the reason"});
  auto tensors = std::make_shared<int>();
  const std::weak_ptr<int> kept = tensors;
  const std::shared_ptr<Activity> refused = exchangeOf(1);
  refused->keepAlive = std::move(tensors);
  EXPECT_EQ(engine_->submit(std::span(&refused, 1), Duration::zero()).code(), StatusCode::kAborted);
  EXPECT_TRUE(refused->isDone());
  EXPECT_TRUE(kept.expired());
}

TEST_F(EngineTest, KeepsTheTensorsOfAShortOperationUntilItsEnd) {
  auto tensors = std::make_shared<int>();
  const std::weak_ptr<int> kept = tensors;
  std::shared_ptr<void> keepAlive = std::move(tensors);
  std::shared_ptr<Activity> late;
  ASSERT_TRUE(engine_->submitShort(*exchangeOf(1), keepAlive, nullptr, &late).isOk());
  ASSERT_NE(late, nullptr);
  EXPECT_FALSE(late->isDone());
  EXPECT_FALSE(kept.expired());
  engine_->abort({StatusCode::kAborted, "the reason"});
  EXPECT_TRUE(late->isDone());
  EXPECT_TRUE(kept.expired());
}

// The end of an engine would notify the peers, and join threads that the child does not have.
TEST_F(EngineTest, IsNotDestroyedInAChildOfFork) {
  constexpr int kDestroyed = 5, kInUse = 6, kLeft = 7;
  std::shared_ptr<Activity> exchange = exchangeOf(1);
  exchange->keepAlive = std::shared_ptr<void>(nullptr, [parent = ::getpid()](void*) {
    if (::getpid() != parent) {
      ::_exit(kDestroyed);
    }
  });
  ASSERT_TRUE(engine_->submit(std::span(&exchange, 1), Duration::zero()).isOk());
  exchange = nullptr;
  int result = kInUse;
  while (result == kInUse) {  // the progress thread, which the child does not have, held the engine at that moment
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);  // a hang is a failure
      if (engine_.use_count() > 1) {
        ::_exit(kInUse);
      }
      engine_ = nullptr;
      ::_exit(kLeft);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    result = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  EXPECT_EQ(result, kLeft);
}

// The peer may have the message already.
TEST_F(EngineTest, FailsTheGroupWhereAMessageInsideItsCallCannotEnd) {
  failNextPoll();
  std::array<std::byte, 8> bytes{};
  const TensorView view = TensorView::contiguous(bytes.data(), DType::kUInt8, {8});
  const CallRecord record{.name = "send", .inputs = std::span(&view, 1), .isMessage = true, .destination = 1};
  const auto sent = engine_->sendNow(bytes, record, Duration::zero());
  EXPECT_EQ(sent.status().code(), StatusCode::kSystem);
  EXPECT_EQ(statusOnceFailed(), sent.status());
}

// With true, the poll of a thread that waits; with false, the progress thread's.
class EnginePollTest : public EngineTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(OfEachThread, EnginePollTest, ::testing::Bool());

TEST_P(EnginePollTest, FailsTheGroupAfterAnException) {
  const auto exchange = submitExchange(1);
  failNextPoll(GetParam());
  const Status status = GetParam() ? exchange->wait(Clock::now() + std::chrono::seconds(10)) : statusOnceFailed();
  EXPECT_EQ(status.code(), StatusCode::kSystem);
  EXPECT_NE(status.message().find("a poll failed on rank 0"), std::string::npos) << status.message();
  EXPECT_TRUE(exchange->isDone());
  EXPECT_TRUE(textOfFirst<FailFrame>().value_or("").starts_with("rank 0 gave up: a poll failed"));
}

TEST_F(EngineTest, KeepsAnExceptionOfAPollFromTheCallerThatEndsTheGroup) {
  const auto exchange = submitExchange(1);
  failNextPoll();
  engine_->abort({StatusCode::kAborted, "the reason"});
  EXPECT_EQ(statusOnceFailed().message(), "the reason");
  EXPECT_TRUE(exchange->isDone());
}

// The thread that aborts does not drive, so it has no turn to hand over before the callbacks.
TEST_F(EngineTest, RunsTheCallbacksOfTheOperationsThatAnAbortEnds) {
  const auto exchange = submitExchange(1);
  std::atomic<int> numCalls{0};
  exchange->onDone([&](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    ++numCalls;
  });
  engine_->abort({StatusCode::kAborted, "the reason"});
  while (numCalls == 0) {  // the progress thread may have taken the callback from the queue
    std::this_thread::yield();
  }
  EXPECT_EQ(numCalls, 1);
}

// Otherwise a thread that is not prepared for a wait would run the callback.
TEST(ActivityCallbacks, RunOnTheThreadThatAddsThemOnceTheListIsClosed) {
  const auto over = std::make_shared<Exchange>("mine", 1, 0);
  std::string order;
  over->onDone([&](const Status&) { order += "a"; });
  (void)Activity::complete(over, Status::ok());
  EXPECT_TRUE(over->closeCallbacks());
  over->onDone([&](const Status&) { order += "b"; });
  EXPECT_EQ(order, "b");
  EXPECT_FALSE(over->closeCallbacks());
  over->runCallbacks();
  EXPECT_EQ(order, "ba");
}

TEST_F(EngineTest, PassesARevocationOnThoughTheGroupFailedBefore) {
  engine_->abort({StatusCode::kPeerFailed, "rank 7 died"});
  put(Lane::kControl,
      frameOf(FailFrame{.code = static_cast<std::uint32_t>(StatusCode::kAborted), .isRevoked = 1}, bytesOf("revoked")));
  while (engine_->locked([](const GroupState& state) { return state.failure.revocation().empty(); })) {
    engine_->memory().help();
  }
  EXPECT_EQ(statusOnceFailed().message(), "rank 7 died");
  EXPECT_EQ(engine_->locked([](const GroupState& state) { return state.failure.notice(); }), "revoked");
}

TEST_F(EngineTest, KeepsItsFirstReasonWhereAPeerFailsToo) {
  engine_->abort({StatusCode::kPeerFailed, "rank 7 died"});
  put(Lane::kControl,
      frameOf(FailFrame{.code = static_cast<std::uint32_t>(StatusCode::kTimeout)}, bytesOf("rank 1 gave up: why")));
  while (engine_->locked([&](const GroupState&) { return !from_.sent(Lane::kControl).empty(); })) {
    engine_->memory().help();
  }
  EXPECT_EQ(statusOnceFailed().message(), "rank 7 died");
  EXPECT_EQ(engine_->locked([](const GroupState& state) { return state.failure.notice(); }),
            "rank 0 gave up: rank 7 died");
}

TEST_F(EngineTest, IsQuietOnlyWhenThePeerSaysThatAllIsDone) {
  const auto word = std::make_shared<WordRequest>(1, WordFrame{.block = 5}, true);
  word->description = std::make_shared<const std::string>("a request for a word");
  const Rank peer = 1;
  ASSERT_TRUE(engine_->memory().request(word, std::span(&peer, 1)).isOk());
  EXPECT_TRUE(word->isDone()) << "nobody answers a silent request";
  const Status status = engine_->memory().quiet(Duration::zero());
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_TRUE(status.message().ends_with("; rank 1 did not say that all is done")) << status.message();
}

TEST_F(EngineTest, NamesTheKindOfAFrameInTheWrongLaneOrWithWrongFields) {
  put(Lane::kControl, frameOf(StagedFrame{{1, 1}, 512, 1}, bytesOf("x")));
  EXPECT_NE(statusOnceFailed().message().find(
                "rank 1 sent a frame of 33 bytes on the control lane that cannot be read (kind 11"),
            std::string::npos);
}

TEST_F(EngineTest, RefusesAFailureWithoutACode) {
  put(Lane::kControl, frameOf(FailFrame{.code = 99}, bytesOf("why")));
  EXPECT_NE(statusOnceFailed().message().find("cannot be read (kind 5: fail)"), std::string::npos);
}

TEST_F(EngineTest, TakesAPeersFailureAsItsOwn) {
  put(Lane::kControl,
      frameOf(FailFrame{.code = static_cast<std::uint32_t>(StatusCode::kTimeout)}, bytesOf("rank 1 gave up: why")));
  EXPECT_EQ(statusOnceFailed(), Status(StatusCode::kTimeout, "rank 1 gave up: why"));
}

// No operation waits for the bytes, so only the progress thread looks.
TEST_F(EngineTest, NoticesStagedBytesThatCannotBeReadWhileNothingIsInFlight) {
  put(Lane::kBulk, Bytes(9));
  EXPECT_NE(statusOnceFailed().message().find("rank 1 sent a frame of 9 bytes on the bulk lane that cannot be read"),
            std::string::npos);
}

TEST_F(EngineTest, KeepsFramesOfOperationsToCome) {
  put(Lane::kControl, frameOf(BlobFrame{{1, 77}, 0, 6}, bytesOf("theirs")));
  const auto exchange = submitExchange(77);
  EXPECT_TRUE(exchange->wait(Clock::now() + std::chrono::seconds(10)).isOk());
  EXPECT_EQ(exchange->blobs(), (std::vector<std::string>{"mine", "theirs"}));
}

TEST_F(EngineTest, SaysThatATimeoutOfZeroIsZero) {
  const std::shared_ptr<Activity> exchange = exchangeOf(77);
  exchange->timeout = timeoutOf(Duration::zero());
  ASSERT_TRUE(engine_->submit(std::span(&exchange, 1), Duration::zero()).isOk());
  const Status status = exchange->wait(Clock::now() + std::chrono::seconds(20));
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_NE(status.message().find("reached its timeout of 0 s"), std::string::npos) << status.message();
}

// Answers of many ranks, or one long answer, are more than a frame takes.
TEST_F(EngineTest, SendsOfALongReasonAsMuchAsFits) {
  // Before the operation: however late this thread runs, the answer is there when the operation expires.
  put(Lane::kControl, frameOf(AnswerFrame{.seq = 1, .state = AskedState::kNotCalled}, bytesOf(std::string(2000, 'x'))));
  auto exchange = std::make_shared<Exchange>("mine", 2, 0);
  exchange->description = std::make_shared<const std::string>("the exchange");
  exchange->fingerprint = 77;
  exchange->timeout = std::chrono::milliseconds(50);
  const std::shared_ptr<Activity> activity = exchange;
  ASSERT_TRUE(engine_->submit(std::span(&activity, 1), Duration::zero()).isOk());
  EXPECT_EQ(exchange->wait(Clock::now() + std::chrono::seconds(20)).code(), StatusCode::kTimeout);
  const auto reason = textOfFirst<CancelFrame>();
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->substr(0, 20), "reached its timeout ");
  EXPECT_NE(reason->find("xxx"), std::string::npos) << *reason;
  EXPECT_LT(reason->size(), 1024u);
}

// Two operations expire one after the other. The answer about the second comes last, before the first expires.
TEST_F(EngineTest, TakesTheLatestAnswerOfAPeerWhicheverOperationWasAsked) {
  auto exchange = std::make_shared<Exchange>("mine", 2, 0);
  exchange->description = std::make_shared<const std::string>("the exchange");
  exchange->fingerprint = 77;
  exchange->timeout = std::chrono::milliseconds(200);
  const std::shared_ptr<Activity> activity = exchange;
  // The peer answers between the question and the expiry, however late this thread runs.
  engine_->locked([&](const GroupState&) {
    onPoll_ = [&, isAsked = false]() mutable {
      const auto wantsAnswer = [](const Bytes& frame) {
        const auto ask = readFrame<AskFrame>(frame);
        return ask.has_value() && ask->wantsAnswer == 1;
      };
      if (!isAsked && std::ranges::any_of(to_->sent(Lane::kControl), wantsAnswer)) {
        isAsked = true;
        for (const auto& [seq, text] : {std::pair(1, "is in the exchange"), std::pair(2, "is in a broadcast")}) {
          from_.sent(Lane::kControl)
              .push_back(frameOf(AnswerFrame{.seq = static_cast<std::uint64_t>(seq), .state = AskedState::kInFlight},
                                 bytesOf(text)));
        }
      }
    };
  });
  ASSERT_TRUE(engine_->submit(std::span(&activity, 1), Duration::zero()).isOk());
  const Status status = exchange->wait(Clock::now() + std::chrono::seconds(20));
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_NE(status.message().find("; rank 1 is in a broadcast"), std::string::npos) << status.message();
}

TEST_F(EngineTest, AsksAPeerThatMeansAnotherOperationByTheSameNumber) {
  put(Lane::kControl, frameOf(CancelFrame{{1, 78}}, bytesOf("reached its timeout")));
  const auto exchange = submitExchange(77);
  const Deadline until = Clock::now() + std::chrono::seconds(10);
  while (!textOfFirst<DesyncFrame>().has_value() && Clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(textOfFirst<DesyncFrame>(), "the exchange");
  put(Lane::kControl, frameOf(DesyncFrame{.seq = 1}, bytesOf("a broadcast")));
  EXPECT_EQ(statusOnceFailed().code(), StatusCode::kMismatch);
  EXPECT_NE(statusOnceFailed().message().find("rank 0 called the exchange, but rank 1 called a broadcast"),
            std::string::npos);
  // The cancel was of the other operation, and did not end this one.
  EXPECT_EQ(exchange->wait(Clock::now() + std::chrono::seconds(10)).code(), StatusCode::kMismatch);
}

// Then the peer's error names both calls, and does not only pass this rank's error on.
TEST_F(EngineTest, AnswersAPeerThatAsksForTheCallOfThisRank) {
  const auto exchange = submitExchange(77);
  put(Lane::kControl, frameOf(DesyncFrame{.seq = 1, .wantsAnswer = 1, .call = 1}, bytesOf("a broadcast")));
  const Status status = statusOnceFailed();
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_NE(status.message().find("rank 0 called the exchange, but rank 1 called a broadcast"), std::string::npos)
      << status.message();
  EXPECT_EQ(textOfFirst<DesyncFrame>(), "the exchange");
}

}  // namespace
}  // namespace shardwire::internal
