// The choice between reading and staging follows the measured times, also when these change.
#include "backend/exec/read_or_stage.h"

#include <gtest/gtest.h>

namespace shardwire::internal {
namespace {

// Transfers of one kind, numbered as they come.
class Transfers {
 public:
  // The number of reads among the next `count`, of which a read takes `read` and a staged one `staged`.
  int reads(int count, double read, double staged) {
    int reads = 0;
    for (int i = 0; i < count; ++i) {
      const bool isRead = way.nextIsRead(number_++).value_or(false);
      way.note(isRead, isRead ? read : staged);
      reads += isRead ? 1 : 0;
    }
    return reads;
  }

  ReadOrStage way;

 private:
  std::uint64_t number_ = 0;
};

constexpr int kFirst = 16;  // enough that both ways were tried

TEST(ReadOrStage, TriesBothAndKeepsTheFasterWay) {
  Transfers read;
  EXPECT_NEAR(read.reads(kFirst, 100, 120), kFirst / 2, kFirst / 4);
  EXPECT_NEAR(read.reads(640, 100, 120), 630, 2);
  Transfers staged;
  staged.reads(kFirst, 120, 100);
  EXPECT_NEAR(staged.reads(640, 120, 100), 10, 2);
}

TEST(ReadOrStage, TriesFewTransfersWhereOneWayIsClearlySlower) {
  Transfers transfers;
  const int clear = transfers.reads(64, 300, 100);
  Transfers others;
  EXPECT_LT(clear, others.reads(64, 110, 100));
  EXPECT_LE(clear, 4);
}

TEST(ReadOrStage, FollowsAChangeOfTheMachine) {
  Transfers transfers;
  transfers.reads(100, 100, 200);
  transfers.reads(100, 100, 50);
  EXPECT_LE(transfers.reads(320, 100, 50), 10);
  transfers.reads(100, 100, 400);
  EXPECT_GE(transfers.reads(320, 100, 400), 310);
}

TEST(ReadOrStage, IsNotMisledByOneLongTransfer) {
  Transfers transfers;
  transfers.reads(50, 100, 200);
  transfers.way.note(true, 100'000);
  transfers.reads(64, 100, 200);
  EXPECT_GE(transfers.reads(320, 100, 200), 309);
}

TEST(ReadOrStage, LeavesTheFirstTransferToTheCaller) {
  ReadOrStage way;
  EXPECT_FALSE(way.nextIsRead(0).has_value());
  EXPECT_TRUE(way.nextIsRead(1).has_value());
}

TEST(ReadOrStage, RanksWithTheSameNumbersTryTheSameWay) {
  ReadOrStage a;
  ReadOrStage b;
  for (std::uint64_t number = 1000; number < 1500; number += 3) {
    const std::optional<bool> way = a.nextIsRead(number);
    ASSERT_EQ(way, b.nextIsRead(number)) << number;
    a.note(way.value_or(false), way.value_or(false) ? 3 : 2);
    b.note(way.value_or(false), way.value_or(false) ? 4 : 1);
  }
}

}  // namespace
}  // namespace shardwire::internal
