// Messages between ranks of one thread over fake links: eager, read from the sender, asked for; and frames that a
// broken peer sends.
#include "backend/exec/point_to_point.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/backend/exec/fake_group.h"

namespace shardwire::internal {
namespace {

struct Message {
  explicit Message(std::size_t size, std::size_t inlineBytes = 64) : group(2), sent(size), received(size) {
    for (std::size_t i = 0; i < size; ++i) {
      sent[i] = static_cast<std::byte>(i * 7 + 1);
    }
    group[0].context.inlineBytes = group[1].context.inlineBytes = inlineBytes;
    send = std::make_shared<PointSend>(1, 9, sent);
    recv = std::make_shared<PointRecv>(0, 9, received);
    activities = {send, recv};
  }
  void startSend() {
    group[0].start(*send, 0);
    group[0].points->start(send);
  }
  void startRecv() {
    group[1].start(*recv, 0);
    group[1].points->start(recv);
  }
  void stepBoth() {
    group[0].step(*send);
    group[1].step(*recv);
  }

  FakeGroup group;
  Bytes sent;
  Bytes received;
  std::shared_ptr<PointSend> send;
  std::shared_ptr<PointRecv> recv;
  std::vector<std::shared_ptr<Activity>> activities;
};

TEST(PointToPoint, SendsAShortMessageInOneFrame) {
  Message message(40);
  message.startSend();
  message.group[0].step(*message.send);
  EXPECT_TRUE(message.send->finished());
  EXPECT_EQ(message.group[0].to(1).sent(Lane::kControl).size(), 1U);
  message.startRecv();
  message.group[1].step(*message.recv);
  EXPECT_TRUE(message.recv->finished());
  EXPECT_EQ(message.received, message.sent);
}

// The arguments of SHARDWIRE_CHECK=full make no message without bytes a long message, whose parts the receiver awaits.
TEST(PointToPoint, SendsAMessageWithoutBytesInOneFrameWhateverItsText) {
  Message message(0, 0);
  message.send->arguments = message.recv->arguments = "float32[0]";
  message.startSend();
  message.startRecv();
  message.group.run(message.activities);
  EXPECT_TRUE(message.recv->finished());
}

TEST(PointToPoint, MovesALongMessageByEveryPathWhoeverComesFirst) {
  for (const Reach reach : {Reach::kNone, Reach::kDirect, Reach::kCopy, Reach::kFetch}) {
    for (const bool sendsFirst : {false, true}) {
      Message message(5000);
      message.group.forEachLink([&](FakeConnection& link) { link.reach = reach; });
      if (sendsFirst) {
        message.startSend();
        message.group[0].step(*message.send);
        message.startRecv();
      } else {
        message.startRecv();
        message.group[1].step(*message.recv);
        message.startSend();
      }
      message.group.run(message.activities);
      EXPECT_EQ(message.received, message.sent) << static_cast<int>(reach);
      EXPECT_EQ(message.group[0].to(1).numConcealed, reach == Reach::kFetch ? 1 : 0);
    }
  }
}

// Where each rank has a core, the first measured message is staged; where ranks share cores, a message over the limit.
TEST(PointToPoint, StagesTheFirstMeasuredMessageOrAMessageOverTheLimit) {
  for (const int variant : {0, 1, 2, 3}) {
    const bool isOver = variant % 2 == 1, isCrowded = variant >= 2;
    Message message(5000);
    message.group[1].context.hasCorePerRank = !isCrowded;
    message.group.forEachLink([&](FakeConnection& link) {
      link.reach = Reach::kCopy;
      link.limits.isMeasured = isCrowded || isOver;
      link.limits.maxEdgeBytes = isCrowded && !isOver ? 5000 : 4999;
    });
    message.startSend();
    message.group[0].step(*message.send);
    message.startRecv();
    for (int i = 0; i < 3; ++i) {
      message.group[1].step(*message.recv);
    }
    ASSERT_EQ(message.group[1].to(0).sent(Lane::kControl).size(), 1U);
    const Bytes& answer = message.group[1].to(0).sent(Lane::kControl).front();
    EXPECT_EQ(readFrame<GrantFrame>(answer).has_value(), isOver);
    EXPECT_EQ(readFrame<TakenFrame>(answer).has_value(), !isOver);
    message.group.run(message.activities);
    EXPECT_EQ(message.received, message.sent);
  }
}

TEST(PointToPoint, KeepsMessagesUntilARecvWithTheirTagComes) {
  Message message(40);
  Bytes other(40, std::byte{5});
  const auto first = std::make_shared<PointSend>(1, 8, other);
  message.group[0].start(*first, 0);
  message.group[0].points->start(first);
  message.group[0].step(*first);
  message.startSend();
  message.group[0].step(*message.send);
  message.startRecv();
  message.group[1].step(*message.recv);
  EXPECT_EQ(message.received, message.sent);
}

TEST(PointToPoint, AnnouncesMessagesInTheOrderOfTheirCalls) {
  Message message(5000);
  const Bytes bytes(40);
  const auto later = std::make_shared<PointSend>(1, 9, bytes);
  message.startSend();
  message.group[0].start(*later, 0);
  message.group[0].points->start(later);
  const auto& frames = message.group[0].to(1).sent(Lane::kControl);
  message.group[0].step(*later);  // the earlier message has not left, say for want of room
  EXPECT_TRUE(frames.empty());
  message.group[0].step(*message.send);
  message.group[0].step(*later);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_TRUE(readFrame<OfferFrame>(frames.front()).has_value());
  EXPECT_TRUE(readFrame<EagerFrame>(frames.back()).has_value());
}

// ---- messages inside the call

struct MessageInCall : ::testing::Test {
  MessageInCall() : group(2), received(40) { group[0].context.inlineBytes = group[1].context.inlineBytes = 64; }
  std::shared_ptr<Activity> send(int tag, std::size_t size = 40) {
    const Bytes bytes(size, static_cast<std::byte>(++numSent));
    return group[0].points->sendNow(1, tag, bytes);
  }
  // As the engine does: takes what came, until the message is here.
  std::shared_ptr<Activity> receive(int tag) {
    PointToPoint::ReceiveNow now(*group[1].points, 0, tag, received);
    group[1].takeFrames(idle);
    EXPECT_EQ(now.isDone(), group[1].points->hasTakenNow(0));
    return now.takeWork();
  }
  // By an operation: the number of the message that came.
  int receiveByOperation(int tag, std::size_t size = 40) {
    Bytes bytes(size);
    const auto recv = std::make_shared<PointRecv>(0, tag, bytes);
    group[1].start(*recv, 0);
    group[1].points->start(recv);
    group[1].step(*recv);
    EXPECT_TRUE(recv->finished());
    return static_cast<int>(bytes[0]);
  }

  FakeGroup group;
  Bytes received;
  PointRecv idle{0, 99, {}};
  int numSent = 0;
};

TEST_F(MessageInCall, IsSentAndReceivedWithoutAnOperation) {
  const auto sent = send(7);
  ASSERT_NE(sent, nullptr);
  EXPECT_TRUE(sent->isDone() && sent->wait(kNoDeadline).isOk());
  const auto work = receive(7);
  ASSERT_NE(work, nullptr);
  EXPECT_TRUE(work->isDone() && work->status().isOk());
  EXPECT_EQ(work->sourceRank(), 0);
  EXPECT_EQ(received, Bytes(40, std::byte{1}));
  EXPECT_EQ(receive(7), nullptr);  // each message is taken once
}

TEST_F(MessageInCall, LeavesALongMessageAndAMessageWithoutRoomToOperations) {
  EXPECT_EQ(send(7, 65), nullptr);
  group[0].to(1).maxFrames = 1;
  EXPECT_NE(send(7), nullptr);
  EXPECT_EQ(send(7), nullptr);
}

TEST_F(MessageInCall, IsNotSentBeforeAnEarlierMessage) {
  group[0].to(1).maxFrames = 0;
  const Bytes bytes(40, std::byte{50});
  const auto earlier = std::make_shared<PointSend>(1, 7, bytes);
  group[0].start(*earlier, 0);
  group[0].points->start(earlier);
  group[0].step(*earlier);
  group[0].to(1).maxFrames = 64;
  EXPECT_EQ(send(7), nullptr);
  group[0].step(*earlier);
  EXPECT_NE(send(7), nullptr);
  EXPECT_EQ(receiveByOperation(7), 50);
  EXPECT_EQ(receiveByOperation(7), numSent);
}

TEST_F(MessageInCall, IsNotTakenBeforeAKeptMessageWithItsTag) {
  ASSERT_NE(send(7), nullptr);
  ASSERT_NE(send(8), nullptr);
  ASSERT_NE(send(7), nullptr);
  ASSERT_NE(receive(8), nullptr);  // message 1 is kept, message 3 is still in the lane or kept, too
  EXPECT_EQ(received, Bytes(40, std::byte{2}));
  EXPECT_EQ(receive(7), nullptr);
  EXPECT_EQ(receiveByOperation(7), 1);
  EXPECT_EQ(receiveByOperation(7), 3);
}

// A message of another size has to be refused by an operation, and no later message may be taken in its place.
TEST_F(MessageInCall, IsNotTakenAfterAMessageOfAnotherSizeWithItsTag) {
  ASSERT_NE(send(7, 30), nullptr);
  ASSERT_NE(send(7, 40), nullptr);
  EXPECT_EQ(receive(7), nullptr);
  EXPECT_EQ(receiveByOperation(7, 30), 1);
  EXPECT_EQ(receiveByOperation(7, 40), 2);
}

TEST_F(MessageInCall, IsNotTakenWhileAReceiveWaits) {
  Bytes bytes(40);
  const auto any = std::make_shared<PointRecv>(-1, 7, bytes);
  group[1].start(*any, 0);
  group[1].points->start(any);
  ASSERT_NE(send(7), nullptr);
  EXPECT_EQ(receive(7), nullptr);
  EXPECT_TRUE(any->finished());
}

// Longer messages are sent eagerly up to a bound. Then one message is offered, and its answer opens the way again.
TEST_F(MessageInCall, IsOfferedNowAndThenWhenItIsLonger) {
  constexpr std::size_t kSize = 900, kMost = std::size_t{1} << 20;
  group[0].context.eagerBytes = kSize;
  received.resize(kSize);
  EXPECT_EQ(send(7, kSize + 1), nullptr);
  for (int round = 0; round < 3; ++round) {
    std::size_t bytes = 0;
    while (send(7, kSize) != nullptr) {
      bytes += kSize;
      ASSERT_NE(receive(7), nullptr);
      ASSERT_EQ(received[0], static_cast<std::byte>(numSent));
    }
    EXPECT_LE(bytes, kMost);
    EXPECT_GT(bytes + kSize, kMost);
    EXPECT_NE(send(7), nullptr);  // a short message is not counted
    EXPECT_EQ(receiveByOperation(7), numSent % 256);
    const Bytes longer(kSize, std::byte{99});
    const auto offered = std::make_shared<PointSend>(1, 7, longer);
    group[0].to(1).reach = round % 2 == 0 ? Reach::kDirect : Reach::kNone;
    const auto recv = std::make_shared<PointRecv>(0, 7, received);
    group[0].start(*offered, 0);
    group[0].points->start(offered);
    group[1].start(*recv, 0);
    group[1].points->start(recv);
    std::vector<std::shared_ptr<Activity>> both = {offered, recv};
    group.run(both);
    EXPECT_EQ(received, longer);
  }
}

// The other message is kept, and waits for a receive from its sender.
TEST(PointToPoint, TakesAMessageInsideTheCallAfterAMessageOfAnotherRankWithItsTag) {
  FakeGroup group(3);
  const Bytes other(40, std::byte{1});
  const Bytes wanted(40, std::byte{2});
  Bytes received(40);
  PointRecv idle(0, 99, {});
  group[0].context.inlineBytes = group[2].context.inlineBytes = 64;
  ASSERT_NE(group[0].points->sendNow(1, 7, other), nullptr);  // frames of rank 0 are taken first
  ASSERT_NE(group[2].points->sendNow(1, 7, wanted), nullptr);
  const PointToPoint::ReceiveNow now(*group[1].points, 2, 7, received);
  group[1].takeFrames(idle);
  EXPECT_TRUE(now.isDone());
  EXPECT_EQ(received, wanted);
}

TEST(PointToPoint, StatesSizesAndArgumentsThatDiffer) {
  for (const bool isKept : {false, true}) {
    Message message(40);
    Bytes less(39);
    message.recv = std::make_shared<PointRecv>(0, 9, less);
    if (isKept) {
      message.startSend();
      message.group[0].step(*message.send);
      message.group[1].step(*message.send);  // takes the frame; no receive waits for the message
      message.startRecv();
    } else {
      message.startRecv();
      message.startSend();
      message.stepBoth();
    }
    EXPECT_EQ(message.group[1].failure.code(), StatusCode::kMismatch);
    EXPECT_NE(message.group[1].failure.message().find("rank 0 sent 40 bytes with tag 9, but rank 1 receives 39 bytes"),
              std::string::npos)
        << message.group[1].failure.message();
  }
  Message message(40);
  message.send->arguments = "int64[5]";
  message.recv->arguments = "float64[5]";
  message.startRecv();
  message.startSend();
  message.stepBoth();
  EXPECT_NE(message.group[1].failure.message().find("rank 0 sent int64[5] with tag 9, but rank 1 receives float64[5]"),
            std::string::npos);
}

// ---- broken peers

// Rank 1's status after rank 1 asked for a message and rank 0 put `frame` into the point lane.
Status failureOfPart(const Bytes& frame) {
  Message message(5000);
  message.startRecv();
  message.startSend();
  message.group[0].step(*message.send);
  message.group[1].step(*message.recv);  // matches, and asks
  message.group[0].to(1).sent(Lane::kPoint).push_back(frame);
  message.group[1].step(*message.recv);
  return message.group[1].failure;
}

TEST(PointToPoint, NamesThePeerOfPartsThatCannotBe) {
  const Bytes part(5001);
  EXPECT_TRUE(failureOfPart(frameOf(MessagePartFrame{1}, Payload(part).first(5000))).isOk());
  for (const Bytes& frame :
       {frameOf(MessagePartFrame{2}, Payload(part).first(10)), frameOf(MessagePartFrame{1}, part)}) {
    EXPECT_EQ(failureOfPart(frame).message(), "rank 0 sent bytes of another message than rank 1 asked for");
  }
  const Bytes sound = frameOf(MessagePartFrame{1}, Payload(part).first(4));
  for (std::size_t size = 1; size < sound.size(); ++size) {
    EXPECT_NE(
        failureOfPart(Bytes(sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(size)))
            .message()
            .find("rank 0 sent a frame of " + std::to_string(size) + " bytes on the point lane that cannot be read"),
        std::string::npos);
  }
}

// Rank 0's status after rank 0 offered a message and rank 1 sent `answer` `times` times.
template <typename F>
Status failureOfAnswer(Reach reach, const F& answer, int times = 1) {
  Message message(5000);
  message.group[0].to(1).reach = reach;
  message.startSend();
  message.group[0].step(*message.send);
  message.group[0].to(1).maxFrames = 0;  // the message stays
  for (int i = 0; i < times; ++i) {
    message.group[1].to(0).sent(Lane::kControl).push_back(frameOf(answer));
  }
  message.group[0].step(*message.send);
  return message.group[0].failure;
}

TEST(PointToPoint, RefusesAnswersThatDoNotFitTheOffer) {
  EXPECT_TRUE(failureOfAnswer(Reach::kNone, GrantFrame{1}).isOk());
  EXPECT_TRUE(failureOfAnswer(Reach::kDirect, TakenFrame{1}).isOk());
  EXPECT_TRUE(failureOfAnswer(Reach::kNone, GrantFrame{7}).isOk()) << "a message that failed meanwhile";
  EXPECT_EQ(failureOfAnswer(Reach::kNone, GrantFrame{1}, 2).message(),
            "rank 1 asked for message 1, which is not to be had");
  EXPECT_EQ(failureOfAnswer(Reach::kNone, TakenFrame{1}).message(),
            "rank 1 says it has read message 1, which it cannot have");
}

TEST(PointToPoint, RefusesAnOfferOfMemoryThatIsNotThere) {
  Message message(5000);
  message.startRecv();
  message.group[0]
      .to(1)
      .sent(Lane::kControl)
      .push_back(frameOf(OfferFrame{
          {.message = 1, .messageBytes = 5000, .tag = 9}, static_cast<std::uint32_t>(Reach::kDirect), 2, 64}));
  message.group[1].step(*message.recv);
  EXPECT_EQ(message.group[1].failure.message(), "rank 0 offered memory that is not mapped on rank 1");
}

}  // namespace
}  // namespace shardwire::internal
