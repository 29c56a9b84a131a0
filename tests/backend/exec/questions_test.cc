// The error of an operation that expires names the rank at the end of a chain of waiting ranks. One rank's group
// without threads, with the test in the place of all peers: the test reads the questions and sends the answers. Time
// passes when the test changes an operation's deadline, or states the time of a look.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/exec/control_frames.h"
#include "backend/exec/exchange.h"
#include "backend/exec/group_state.h"
#include "backend/exec/process_failures.h"
#include "backend/exec/slow_checks.h"
#include "tests/backend/exec/fake_group.h"
#include "tests/support/random.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Waits for `needed` until the end of the test, like a run of a plan: a timeout fails the group.
class Waits final : public Activity {
 public:
  explicit Waits(std::vector<Rank> needed) : needed_(std::move(needed)) {}
  bool step(std::vector<bool>&) override { return false; }
  bool finished() const override { return false; }
  bool needs(Rank peer) const override { return std::ranges::find(needed_, peer) != needed_.end(); }
  std::string waitingFor() const override { return "the needed ranks did not arrive"; }

 private:
  const std::vector<Rank> needed_;
};

class QuestionsTest : public ::testing::Test {
 protected:
  static constexpr Rank kSize = 40;

  QuestionsTest() {
    for (Rank peer = 0; peer < kSize; ++peer) {
      auto& mine = peers_.connections.emplace_back();
      auto& other = others_.emplace_back();
      if (peer != 0) {
        auto link = std::make_unique<FakeConnection>(peer);
        other = std::make_unique<FakeConnection>(0);
        link->other = other.get();
        other->other = link.get();
        mine = std::move(link);
      }
    }
    peers_.hosts.resize(kSize);
    makeState();
  }
  ~QuestionsTest() override {
    state_->failure.fail({StatusCode::kAborted, "the end of the test"});
    poll();
    removeProcessGroup(state_->context.inProcess());  // the group may have failed because of a peer
  }

  void makeState(Duration grace = Options{}.grace) {
    GroupFacts facts{.rank = 0, .worldSize = kSize, .label = "rank 0", .segmentBytes = 512, .hosts = peers_.hosts};
    facts.options.grace = grace;
    state_ = std::make_unique<GroupState>(peers_, facts, recorder_, callback_, hasWork_);
  }
  std::shared_ptr<Activity> start(const std::string& name, std::vector<Rank> needed) {
    auto activity = std::make_shared<Waits>(std::move(needed));
    activity->description = std::make_shared<const std::string>(name);
    activity->timeout = seconds(100);
    state_->operations.number(*activity, state_->operations.nextCall());
    state_->take(activity);
    state_->operations.startClocks();
    return activity;
  }
  void poll() {
    state_->poll();
    state_->operations.completions().clear();
  }
  void look() {
    state_->lastSlowCheck = {};
    poll();
    checkSlow(*state_, true);
  }
  // The time comes to ask for the error of the operation.
  void comeNearTheEnd(Activity& activity) {
    activity.deadline = Clock::now() + std::chrono::milliseconds(1);
    look();
  }
  Status expire(Activity& activity) {
    activity.deadline = Clock::now();
    look();
    return activity.status();
  }
  // The ranks with a new question that wants an answer at once, and the numbers of the operations in question.
  std::map<Rank, std::uint64_t> asked() {
    std::map<Rank, std::uint64_t> ranks;
    for (Rank peer = 1; peer < kSize; ++peer) {
      auto& frames =
          static_cast<FakeConnection&>(*peers_.connections[static_cast<std::size_t>(peer)]).sent(Lane::kControl);
      for (const Bytes& frame : frames) {
        if (const auto ask = readFrame<AskFrame>(frame); ask.has_value() && ask->wantsAnswer == 1) {
          EXPECT_TRUE(ranks.emplace(peer, ask->operation.seq).second);
        }
      }
      frames.clear();
    }
    return ranks;
  }
  std::deque<Bytes>& framesTo(Rank peer) {
    return static_cast<FakeConnection&>(*peers_.connections[static_cast<std::size_t>(peer)]).sent(Lane::kControl);
  }
  void take(Rank from, const Bytes& frame) {
    others_[static_cast<std::size_t>(from)]->sent(Lane::kControl).push_back(frame);
    poll();
  }
  void answer(Rank from, std::uint64_t seq, const std::string& text, const std::vector<Rank>& awaited) {
    const AnswerFrame frame{.seq = seq,
                            .state = AskedState::kInFlight,
                            .numInFlight = 1,
                            .numAwaited = static_cast<std::uint32_t>(awaited.size())};
    take(from, frameOf(frame, bytesOf(std::string(textOf(std::as_bytes(std::span(awaited)))) + text)));
  }

  Peers peers_;
  std::vector<std::unique_ptr<FakeConnection>> others_;  // the peers' ends
  OpRecorder recorder_{0};
  FailureCallback callback_;
  std::atomic<bool> hasWork_{false};
  std::unique_ptr<GroupState> state_;
};

using Asked = std::map<Rank, std::uint64_t>;

void expectHas(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nwanted: " << part;
}

TEST_F(QuestionsTest, FollowTheChainOfWaitingRanksToItsEnd) {
  const auto activity = start("all_reduce", {1});
  comeNearTheEnd(*activity);
  EXPECT_EQ(asked(), (Asked{{1, 1}}));
  answer(1, 1, "is in recv: rank 3 sent nothing", {3});
  look();
  EXPECT_EQ(asked(), (Asked{{3, 0}}));  // rank 3 may take no part in the operation
  answer(3, 0, "is in send: rank 4 did not receive it", {4, 1, 0, 3, 3});
  look();
  EXPECT_EQ(asked(), (Asked{{4, 0}}));
  answer(4, 0, "has called nothing in this group", {});
  look();
  EXPECT_TRUE(asked().empty());
  const Status status = expire(*activity);
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  expectHas(status.message(),
            "the needed ranks did not arrive; rank 1 is in recv: rank 3 sent nothing; rank 3 is in send: rank 4 did "
            "not receive it; rank 4 has called nothing in this group");
}

TEST_F(QuestionsTest, NameTheEndOfTheChainThatGivesNoAnswer) {
  const auto activity = start("all_reduce", {1, 2});
  comeNearTheEnd(*activity);
  EXPECT_EQ(asked(), (Asked{{1, 1}, {2, 1}}));
  answer(1, 1, "is in recv", {3});
  look();
  EXPECT_EQ(asked(), (Asked{{3, 0}}));
  answer(2, 1, "is in recv", {5});
  // No room for the question.
  static_cast<FakeConnection&>(*peers_.connections[5]).maxFrames = 0;
  look();
  activity->timeout = seconds(0);  // a quarter of the notice is over at once
  expectHas(expire(*activity).message(),
            "; rank 1 is in recv; rank 2 is in recv; rank 3 gave no answer; rank 5 could not be asked in time");
}

// The last rank of a long chain was asked only just now.
TEST_F(QuestionsTest, CallNoRankSilentThatHadNoTimeToAnswer) {
  const auto activity = start("all_reduce", {1});
  comeNearTheEnd(*activity);
  answer(1, 1, "is in recv", {3});
  const Clock::time_point before = Clock::now();
  look();
  activity->timeout = seconds(10000);
  const std::string text = expire(*activity).message();
  if (Clock::now() - before < std::chrono::milliseconds(50)) {  // or this machine is busy
    expectHas(text, "; rank 3 could not be asked in time");
  }
}

TEST_F(QuestionsTest, FollowAnOlderOperationOfTheSameRank) {
  const auto older = start("all_gather", {7});
  const auto newer = start("broadcast", {});
  comeNearTheEnd(*newer);
  EXPECT_EQ(asked(), (Asked{{7, 0}}));
  answer(7, 0, "is in recv", {8});
  const std::string text = expire(*newer).message();
  expectHas(text, "; all_gather (operation #1), called before, is not over: the needed ranks did not arrive");
  expectHas(text, "; rank 7 is in recv");
  poll();
  EXPECT_TRUE(older->isDone());  // the group failed
}

// The rank is done with its part of this operation, and yet may keep a needed rank waiting.
TEST_F(QuestionsTest, GoToARankOfTheChainThatIsDoneWithTheOperation) {
  const auto activity = start("all_reduce", {1});
  others_[3]->sent(Lane::kControl).push_back(frameOf(AnswerFrame{.seq = 1, .state = AskedState::kOver}));
  comeNearTheEnd(*activity);
  EXPECT_EQ(asked(), (Asked{{1, 1}}));
  answer(1, 1, "is in recv: rank 3 sent nothing", {3});
  look();
  EXPECT_EQ(asked(), (Asked{{3, 0}}));
  answer(3, 0, "is in a broadcast", {});
  expectHas(expire(*activity).message(), "; rank 1 is in recv: rank 3 sent nothing; rank 3 is in a broadcast");
}

TEST_F(QuestionsTest, TakeNoAnswerOfAnEarlierError) {
  auto first = std::make_shared<Exchange>("mine", kSize, 0);  // the group survives its timeout
  first->description = std::make_shared<const std::string>("compile_op");
  first->timeout = seconds(100);
  state_->operations.number(*first, state_->operations.nextCall());
  state_->take(first);
  state_->operations.startClocks();
  poll();
  comeNearTheEnd(*first);
  EXPECT_EQ(asked().size(), std::size_t{kSize - 1});
  answer(1, 1, "is in recv", {3});
  answer(3, 1, "is in a dream", {});
  EXPECT_EQ(expire(*first).code(), StatusCode::kTimeout);
  const auto second = start("all_reduce", {1});
  comeNearTheEnd(*second);
  const std::string text = expire(*second).message();
  expectHas(text, "; rank 1 gave no answer");
  EXPECT_EQ(text.find("dream"), std::string::npos) << text;
}

TEST_F(QuestionsTest, OmitRanksInTheMiddleOfAChainOfManyRanks) {
  const auto activity = start("all_reduce", {1});
  comeNearTheEnd(*activity);
  for (Rank peer = 1; peer < 20; ++peer) {
    answer(peer, peer == 1 ? 1 : 0, "is in recv", {peer + 1});
    look();
  }
  answer(20, 0, "is asleep", {});
  const std::string text = expire(*activity).message();
  expectHas(
      text,
      "did not arrive; rank 1 is in recv; rank 2 is in recv; rank 3 is in recv; rank 4 is in recv; rank 20 is asleep");
}

TEST_F(QuestionsTest, RefuseAnAnswerWithARankThatIsNotInTheGroup) {
  for (const Rank rank : {Rank{-1}, kSize, Rank{1 << 30}}) {
    SCOPED_TRACE(rank);
    const auto activity = start("all_reduce", {1});
    answer(1, 1, "is in recv", {2, rank});
    EXPECT_EQ(state_->operations.failure().code(), StatusCode::kInternal);
    expectHas(state_->operations.failure().message(), "rank 1 waits for a rank that is not in the group of 40 ranks");
    makeState();
  }
}

// Loops, repetitions, ranks that answer unasked: each look ends, and few ranks are asked.
TEST_F(QuestionsTest, EndWhateverThePeersAnswer) {
  testing::Random random(5);
  const auto activity = start("all_reduce", {1});
  comeNearTheEnd(*activity);
  for (int i = 0; i < 2000; ++i) {
    std::vector<Rank> awaited(static_cast<std::size_t>(random.between(0, kMostAwaited)));
    std::ranges::generate(awaited, [&] { return static_cast<Rank>(random.between(0, kSize - 1)); });
    answer(static_cast<Rank>(random.between(1, kSize - 1)), static_cast<std::uint64_t>(random.between(0, 2)), "waits",
           awaited);
    look();
    EXPECT_LE(asked().size(), 34U);
  }
  expectHas(expire(*activity).message(), "; rank 1 waits");
}

// A peer keeps the question about an operation to come.
TEST_F(QuestionsTest, GoOnceAboutEachOperation) {
  const auto activity = start("all_reduce", {1});
  for (int i = 1; i <= 3; ++i) {
    state_->questions.look(activity->started + i * milliseconds(100));
  }
  ASSERT_EQ(framesTo(1).size(), 1U);
  const auto ask = readFrame<AskFrame>(framesTo(1).front());
  ASSERT_TRUE(ask.has_value());
  EXPECT_EQ(ask->operation.seq, 1U);
}

// While frames move, the operation may end by itself.
TEST_F(QuestionsTest, GoOnlyWhileNothingMoves) {
  const auto activity = start("all_reduce", {1});
  activity->started -= seconds(1);
  for (const bool isQuiet : {false, true}) {
    state_->lastSlowCheck = {};
    checkSlow(*state_, isQuiet);
    EXPECT_EQ(framesTo(1).size(), isQuiet ? 1U : 0U);
  }
}

TEST_F(QuestionsTest, WhetherAPeerComesGoOnceASecond) {
  const auto activity = start("all_reduce", {1});
  take(1, frameOf(AdviceFrame{}, bytesOf("a rank died")));
  const Clock::time_point begin = Clock::now() + seconds(1);  // longer than the grace time
  state_->questions.look(begin);
  EXPECT_EQ(asked(), (Asked{{1, 1}}));
  state_->questions.look(begin + milliseconds(500));
  EXPECT_TRUE(asked().empty());
  state_->questions.look(begin + seconds(1));
  EXPECT_EQ(asked(), (Asked{{1, 1}}));
}

TEST_F(QuestionsTest, EndTheGroupWhereAPeerThatGaveUpElsewhereHasCalledNothing) {
  makeState(Duration::zero());
  const auto activity = start("all_reduce", {1});
  take(1, frameOf(AdviceFrame{}, bytesOf("a rank died")));
  const std::string does = "has called nothing in this group";
  take(1, frameOf(AnswerFrame{.seq = 1, .state = AskedState::kNotCalled, .numInFlight = 1}, bytesOf(does)));
  EXPECT_TRUE(state_->operations.failure().isOk()) << "the peer is in another operation of the group";
  take(1, frameOf(AnswerFrame{.seq = 1, .state = AskedState::kNotCalled}, bytesOf(does)));
  EXPECT_EQ(state_->operations.failure().code(), StatusCode::kPeerFailed);
  expectHas(state_->operations.failure().message(),
            "rank 1 does not come: another group of its process failed and is still there (a rank died). It has called "
            "nothing in this group; rank 0 waited in all_reduce (operation #1)");
}

// The asked rank's side.
TEST_F(QuestionsTest, AreAnsweredWithTheRanksThatKeepThisRankWaiting) {
  const auto older = start("all_gather", {9, 4});
  const auto newer = start("broadcast", {2, 9});
  others_[30]->sent(Lane::kControl).push_back(frameOf(AskFrame{.wantsAnswer = 1}));
  poll();
  auto& frames = static_cast<FakeConnection&>(*peers_.connections[30]).sent(Lane::kControl);
  ASSERT_EQ(frames.size(), 1U);
  const auto read = readFrame<AnswerFrame>(frames.front());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(awaitedIn(*read, kSize), (std::vector<Rank>{4, 9, 2}));
  EXPECT_EQ(textOf(read->payload.subspan(read->awaitedBytes())),
            "is in all_gather (operation #1): the needed ranks did not arrive");
}

TEST_F(QuestionsTest, AboutAnOperationToComeWaitForTheCallUnlessThePeerWantsAnAnswerNow) {
  const auto& sent = static_cast<FakeConnection&>(*peers_.connections[30]).sent(Lane::kControl);
  for (const std::uint32_t wantsAnswer : {0U, 1U}) {
    others_[30]->sent(Lane::kControl).push_back(frameOf(AskFrame{.operation = {1, 77}, .wantsAnswer = wantsAnswer}));
    poll();
    ASSERT_EQ(sent.size(), wantsAnswer);
  }
  const auto read = readFrame<AnswerFrame>(sent.front());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->state, AskedState::kNotCalled);
}

TEST_F(QuestionsTest, AreAnsweredOnce) {
  take(30, frameOf(AskFrame{.wantsAnswer = 1}));
  ASSERT_EQ(framesTo(30).size(), 1U);
  state_->questions.look(Clock::now() + seconds(1));
  EXPECT_EQ(framesTo(30).size(), 1U);
}

TEST_F(QuestionsTest, AreAnsweredWithWhetherTheOperationWasCalled) {
  const auto stateOf = [&](std::uint64_t seq) {
    framesTo(30).clear();
    take(30, frameOf(AskFrame{.operation = {seq, 0}, .wantsAnswer = 1}));
    const auto read = framesTo(30).empty() ? std::nullopt : readFrame<AnswerFrame>(framesTo(30).front());
    EXPECT_TRUE(read.has_value());
    return read.has_value() ? std::optional(read->state) : std::nullopt;
  };
  EXPECT_EQ(stateOf(0), AskedState::kNotCalled);  // 0: any operation
  EXPECT_EQ(stateOf(1), AskedState::kNotCalled);
  const auto activity = start("all_gather", {9});
  EXPECT_EQ(stateOf(0), AskedState::kInFlight);
  EXPECT_EQ(stateOf(1), AskedState::kInFlight);
  EXPECT_EQ(stateOf(2), AskedState::kNotCalled);
}

// The ranks of the two questions called another operation, which moves as many bytes.
TEST_F(QuestionsTest, AreKeptUntilTheCallAndThenAnsweredWithADisagreement) {
  const Bytes question = frameOf(AskFrame{.operation = {1, 77}});
  take(30, question);
  EXPECT_TRUE(framesTo(30).empty());
  const auto activity = start("all_gather", {9});
  deliverEarly(*state_, *activity);
  take(31, question);
  for (const Rank peer : {30, 31}) {
    ASSERT_EQ(framesTo(peer).size(), 1U) << peer;
    EXPECT_TRUE(readFrame<DesyncFrame>(framesTo(peer).front()).has_value());
  }
}

TEST_F(QuestionsTest, AreAnsweredLaterWhereTheLaneIsFull) {
  auto& link = static_cast<FakeConnection&>(*peers_.connections[30]);
  link.maxFrames = 0;
  for (int i = 0; i < 2; ++i) {
    others_[30]->sent(Lane::kControl).push_back(frameOf(AskFrame{.wantsAnswer = 1}));
    poll();
  }
  const auto activity = start("all_gather", {9});
  link.maxFrames = 64;
  EXPECT_TRUE(link.sent(Lane::kControl).empty());
  look();
  ASSERT_EQ(link.sent(Lane::kControl).size(), 1U) << "one answer to a question that came twice";
  const auto read = readFrame<AnswerFrame>(link.sent(Lane::kControl).front());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->state, AskedState::kInFlight) << "as the rank is when the answer leaves";
  EXPECT_EQ(textOf(read->payload.subspan(read->awaitedBytes())),
            "is in all_gather (operation #1): the needed ranks did not arrive");
}

TEST_F(QuestionsTest, AreAnsweredInTheirOrderWhereTheLaneWasFull) {
  for (int i = 0; i < 2; ++i) {
    const auto over = start("broadcast", {});
    state_->operations.finish(*over, Status::ok());
  }
  poll();
  auto& link = static_cast<FakeConnection&>(*peers_.connections[30]);
  for (const std::uint64_t seq : {1U, 2U}) {
    link.maxFrames = seq == 1 ? 0 : 64;
    others_[30]->sent(Lane::kControl).push_back(frameOf(AskFrame{.operation = {seq, 0}}));
    poll();
  }
  ASSERT_EQ(link.sent(Lane::kControl).size(), 2U);
  for (const std::uint64_t seq : {1U, 2U}) {
    const auto read = readFrame<AnswerFrame>(link.sent(Lane::kControl)[seq - 1]);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->seq, seq);
    EXPECT_EQ(read->state, AskedState::kOver);
  }
}

TEST_F(QuestionsTest, AreAnsweredWithADisagreementWhereTheRankCalledSomethingElseMeanwhile) {
  auto& link = static_cast<FakeConnection&>(*peers_.connections[30]);
  link.maxFrames = 0;
  others_[30]->sent(Lane::kControl).push_back(frameOf(AskFrame{.operation = {1, 77}, .wantsAnswer = 1}));
  poll();
  const auto activity = start("all_gather", {9});
  look();  // the lane is full
  ASSERT_TRUE(link.sent(Lane::kControl).empty());
  link.maxFrames = 64;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // looks have some time between them
  look();
  ASSERT_EQ(link.sent(Lane::kControl).size(), 1U);
  EXPECT_TRUE(readFrame<DesyncFrame>(link.sent(Lane::kControl).front()).has_value());
}

// Over a slow network the answer comes long before the last frames.
TEST_F(QuestionsTest, FindNoDisagreementWhileFramesOfThePeerAreUnderWay) {
  const auto activity = start("reduce", {1});
  others_[1]
      ->sent(Lane::kControl)
      .push_back(frameOf(AnswerFrame{.seq = 1, .state = AskedState::kOver, .bulkFrames = 1}));
  poll();
  const auto isDesync = [](const Bytes& frame) { return readFrame<DesyncFrame>(frame).has_value(); };
  const Clock::time_point later = Clock::now() + seconds(3);
  state_->questions.look(later);
  EXPECT_EQ(std::ranges::count_if(framesTo(1), isDesync), 0);
  state_->context.bulkFramesOf(1).taken = 1;
  state_->questions.look(later + milliseconds(100));
  EXPECT_EQ(std::ranges::count_if(framesTo(1), isDesync), 1);
}

// The time of the warning came 10 s ago, and the peers had the time to answer.
TEST_F(QuestionsTest, LeadToAWarningOnlyWhileNothingMoves) {
  const auto activity = start("all_reduce", {1});
  activity->noticeAfter = state_->warnAfter;
  activity->started -= state_->warnAfter + seconds(10);
  activity->askedPeersAt = activity->started;
  const auto lines = [&](bool isQuiet) {
    ::testing::internal::CaptureStderr();
    state_->lastSlowCheck = {};
    checkSlow(*state_, isQuiet);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(lines(false), "");
  expectHas(lines(true), "all_reduce (operation #1) has waited for 60 s of at most 100 s: the needed ranks did not");
  EXPECT_EQ(lines(true), "") << "the next warning would come just before the error";
}

// Of operations of one call, and of equal timeouts, the oldest expires first.
TEST_F(QuestionsTest, ComeForTheOldestOperationFirst) {
  std::vector<std::shared_ptr<Activity>> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(std::make_shared<Waits>(std::vector<Rank>{1}));
    all.back()->description = std::make_shared<const std::string>("part");
    all.back()->timeout = seconds(100);
    state_->operations.number(*all.back(), state_->operations.nextCall());
    state_->take(all.back());
  }
  state_->operations.startClocks();
  EXPECT_LE(all[0]->deadline, all[1]->deadline);
  EXPECT_LE(all[1]->deadline, all[2]->deadline);
}

}  // namespace
}  // namespace shardwire::internal
