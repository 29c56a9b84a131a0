// The operations of one rank without an engine: operations that end inside their call, and what is recorded of them.
#include "backend/exec/operations.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/backend/exec/fake_group.h"

namespace shardwire::internal {
namespace {

// Ends by its first step, and can do so inside its call.
class EndsAtOnce final : public Activity {
 public:
  bool step(std::vector<bool>&) override { return !std::exchange(isOver_, true); }
  bool moveNow(int) override {
    ++numMoves;
    return isOver_ = true;
  }
  bool finished() const override { return isOver_; }
  bool needs(Rank) const override { return false; }
  std::string waitingFor() const override { return ""; }
  void addTraffic(std::span<EdgeBytes> byPeer) const override { byPeer[1].sends += 8; }

  int numMoves = 0;

 private:
  bool isOver_ = false;
};

class OperationsTest : public ::testing::Test {
 protected:
  std::shared_ptr<EndsAtOnce> call() {
    auto activity = std::make_shared<EndsAtOnce>();
    activity->description = std::make_shared<const std::string>("all_reduce");
    operations_.number(*activity, operations_.nextCall());
    return activity;
  }

  FakeGroup group_{2};
  OpRecorder recorder_{4};
  Operations operations_{group_[0].context, recorder_, std::chrono::seconds(20)};
};

// The callback runs on the thread that notices the end, and not inside of the call.
TEST_F(OperationsTest, MoveInsideTheirCallUnlessACallbackWaitsForTheirEnd) {
  const auto first = call();
  EXPECT_TRUE(operations_.moveNow(*first, 1));
  EXPECT_TRUE(first->isDone());
  EXPECT_EQ(operations_.traffic(1).sends, 8U);
  const auto second = call();
  second->onDone([](const Status&) {});
  EXPECT_FALSE(operations_.moveNow(*second, 1));
  EXPECT_EQ(second->numMoves, 0);
  operations_.take(second);
  EXPECT_TRUE(operations_.step());
  EXPECT_TRUE(second->isDone());
  EXPECT_EQ(operations_.traffic(1).sends, 16U);
}

TEST_F(OperationsTest, CountAMessageInsideItsCallForThePeer) {
  std::array<std::byte, 8> bytes{};
  const TensorView view = TensorView::contiguous(bytes.data(), DType::kUInt8, {8});
  operations_.recordOver(
      {.name = "recv", .outputs = std::span(&view, 1), .isMessage = true, .source = 1, .destination = 0, .tag = 3},
      Duration::zero(), bytes.size());
  EXPECT_EQ(operations_.traffic(1).receives, 8U);
  EXPECT_EQ(operations_.traffic(1).sends, 0U);
  EXPECT_EQ(recorder_.latest(1).at(0).description.text(), Description::ofRecv(DType::kUInt8, 8, 1, 3).text());
  operations_.recordOver(
      {.name = "send", .inputs = std::span(&view, 1), .isMessage = true, .source = 0, .destination = 1, .tag = 3},
      Duration::zero(), bytes.size());
  EXPECT_EQ(operations_.traffic(1).sends, 8U);
  EXPECT_EQ(operations_.traffic(0).receives + operations_.traffic(0).sends, 0U);
  EXPECT_EQ(recorder_.latest(1).at(0).description.text(), Description::ofSend(DType::kUInt8, 8, 1, 3).text());
}

}  // namespace
}  // namespace shardwire::internal
