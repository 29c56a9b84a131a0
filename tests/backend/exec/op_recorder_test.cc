// The flight recorder of one group: the record of a call, and the remaining records when the ring has come round.
#include "backend/exec/op_recorder.h"

#include <gtest/gtest.h>

#include <array>

#include "backend/exec/exchange.h"

namespace shardwire::internal {
namespace {

// Any activity will do: only the description and the timeout are used.
std::shared_ptr<Exchange> activityOf(const char* description, std::uint64_t call = 1) {
  auto activity = std::make_shared<Exchange>("", 1, 0);
  activity->description = std::make_shared<const std::string>(description);
  activity->timeout = std::chrono::seconds(3);
  activity->call = call;
  return activity;
}

TensorView viewOf(const Dims& shape, DType dtype = DType::kFloat32) {
  return TensorView::contiguous(nullptr, dtype, shape);
}

TEST(OpRecorder, WritesDownCallTimesAndResult) {
  OpRecorder recorder(4);
  const auto activity = activityOf("all_reduce(float32[6], sum)", 17);
  const auto view = viewOf({2, 3});
  const auto before = Clock::now();
  const std::uint64_t number =
      recorder.call({.name = "all_reduce", .inputs = {&view, 1}, .outputs = {&view, 1}}, *activity);
  const RecordedOp called = recorder.latest().at(0);
  EXPECT_EQ(called.seq, 17u);
  EXPECT_STREQ(called.name, "all_reduce");
  EXPECT_EQ(called.description.text(), "all_reduce(float32[6], sum)");
  EXPECT_EQ(called.inputs.at(0).shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(called.timeout, std::chrono::seconds(3));
  EXPECT_GE(called.called, before);
  EXPECT_EQ(called.started, called.called);
  EXPECT_FALSE(called.isOver());
  recorder.end(number, StatusCode::kTimeout, -1);
  const RecordedOp over = recorder.latest().at(0);
  EXPECT_TRUE(over.isOver());
  EXPECT_GE(over.ended, over.called);
  EXPECT_EQ(over.code, StatusCode::kTimeout);
}

TEST(OpRecorder, WritesDownListsAsTheyAreCompared) {
  OpRecorder recorder(4);
  const auto activity = activityOf("x");
  const std::array<TensorView, 3> views = {viewOf({2, 4}), viewOf({2, 4}), viewOf({2, 4})};
  const auto shapesOf = [&](CallRecord::Lists lists) {
    recorder.call({.name = "x", .inputs = views, .lists = lists}, *activity);
    const RecordedOp op = recorder.latest(1).at(0);
    std::vector<std::vector<std::int64_t>> shapes;
    for (const RecordedTensor& tensor : op.inputs) {
      shapes.push_back(tensor.shape);
    }
    return shapes;
  };
  using Shapes = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(shapesOf(CallRecord::Lists::kEach), (Shapes{{2, 4}, {2, 4}, {2, 4}}));
  EXPECT_EQ(shapesOf(CallRecord::Lists::kStacked), (Shapes{{3, 2, 4}}));
  EXPECT_EQ(shapesOf(CallRecord::Lists::kJoined), (Shapes{{24}}));
  const std::vector<TensorView> many(100, viewOf({5}));
  recorder.call({.name = "x", .inputs = many}, *activity);
  EXPECT_EQ(recorder.latest(1).at(0).inputs.size(), 16u);
  recorder.call({.name = "x", .lists = CallRecord::Lists::kStacked}, *activity);
  EXPECT_TRUE(recorder.latest(1).at(0).inputs.empty());
}

TEST(OpRecorder, KeepsTheLatestAndTakesNoEndOfWhatIsForgotten) {
  OpRecorder recorder(3);
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t seq = 1; seq <= 5; ++seq) {
    numbers.push_back(recorder.call({.name = "x"}, *activityOf("x", seq)));
  }
  recorder.end(numbers[0], StatusCode::kPeerFailed, -1);  // the place holds seq 4 now
  const auto left = recorder.latest();
  ASSERT_EQ(left.size(), 3u);
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].seq, i + 3);
    EXPECT_FALSE(left[i].isOver());
    EXPECT_TRUE(i == 0 || left[i].recordId > left[i - 1].recordId);
  }
  EXPECT_EQ(recorder.latest(1).at(0).seq, 5u);
}

TEST(OpRecorder, KnowsWhenWhatWasHeldBackStarts) {
  OpRecorder recorder(3);
  const auto activity = activityOf("x");
  const std::uint64_t number = recorder.call({.name = "x", .isHeldBack = true}, *activity);
  EXPECT_EQ(recorder.latest().at(0).started, Clock::time_point{});
  recorder.start(number);
  EXPECT_GE(recorder.latest().at(0).started, recorder.latest().at(0).called);
}

TEST(OpRecorder, NumbersMessagesByRanksAndTag) {
  OpRecorder recorder(8);
  const auto activity = activityOf("recv");
  const auto numberOf = [&](Rank source, int tag) {
    const CallRecord call{.name = "recv", .isMessage = true, .source = source, .destination = 0, .tag = tag};
    const std::uint64_t number = recorder.call(call, *activity);
    recorder.end(number, StatusCode::kOk, 2);
    const RecordedOp op = recorder.latest(1).at(0);
    EXPECT_EQ(op.source, source < 0 ? 2 : source);
    return op.messageNumber;
  };
  EXPECT_EQ(numberOf(1, 5), 1u);
  EXPECT_EQ(numberOf(1, 5), 2u);
  EXPECT_EQ(numberOf(1, 6), 1u);
  EXPECT_EQ(numberOf(2, 5), 1u);
  EXPECT_EQ(numberOf(-1, 5), 2u);  // from any rank: the last message was rank 2's
}

TEST(OpRecorder, IsOneRecordForACallOfSeveralParts) {
  OpRecorder recorder(3);
  const auto activity = activityOf("compile_op", 4);
  activity->record = recorder.call({.name = "compile_op"}, *activity);
  recorder.end(activity->record, StatusCode::kOk, -1);
  const CallRecord next{.name = "compile_op", .continues = partOf(*activity)};
  EXPECT_EQ(recorder.call(next, *activityOf("the next part", 4)), activity->record);
  ASSERT_EQ(recorder.latest().size(), 1u);
  EXPECT_FALSE(recorder.latest().at(0).isOver());
  recorder.end(activity->record, StatusCode::kTimeout, -1);
  EXPECT_EQ(recorder.latest().at(0).code, StatusCode::kTimeout);
}

// A queue takes a new tag for each request: the memory for tags must not grow for ever.
TEST(OpRecorder, ForgetsTheTagsThatNobodyUses) {
  OpRecorder recorder(8);
  const auto activity = activityOf("send");
  const auto numberOf = [&](int tag) {
    recorder.call({.name = "send", .isMessage = true, .source = 0, .destination = 1, .tag = tag}, *activity);
    return recorder.latest(1).at(0).messageNumber;
  };
  EXPECT_EQ(numberOf(0), 1u);
  for (int tag = 1; tag <= 1000; ++tag) {
    EXPECT_EQ(numberOf(tag), 1u);
  }
  EXPECT_EQ(numberOf(0), 2u);
  for (int tag = 1; tag <= 10000; ++tag) {
    numberOf(10000 + tag);
    if (tag % 4 == 0) {
      EXPECT_EQ(numberOf(-7), static_cast<std::uint64_t>(tag / 4));  // in use: counted on
    }
  }
  EXPECT_EQ(numberOf(0), 1u);  // forgotten
}

}  // namespace
}  // namespace shardwire::internal
