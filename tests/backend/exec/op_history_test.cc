#include "backend/exec/op_history.h"

#include <gtest/gtest.h>

namespace shardwire::internal {
namespace {

TEST(OpHistory, KnowsTheLatestOnly) {
  OpHistory history;
  EXPECT_EQ(history.find(1), nullptr);
  constexpr std::uint64_t kMany = 1000;
  for (std::uint64_t seq = 1; seq <= kMany; ++seq) {
    history.note(seq, seq, 10 * seq, {});
    ASSERT_NE(history.find(seq), nullptr);
    EXPECT_EQ(history.find(seq)->fingerprint, 10 * seq);
    EXPECT_EQ(history.find(seq + 1), nullptr);
  }
  EXPECT_NE(history.find(kMany - 255), nullptr);
  EXPECT_EQ(history.find(kMany - 256), nullptr);
}

TEST(OpHistory, ALaterOperationHasNothingOfTheOneBeforeInItsPlace) {
  OpHistory history;
  history.note(3, 3, 1, {});
  history.noteGivenUp(3, 2, "why");
  history.noteGivenUp(3, 1, "another rank, later");
  ASSERT_NE(history.givenUp(3), nullptr);
  EXPECT_EQ(history.givenUp(3)->by, 2);
  EXPECT_EQ(history.givenUp(3)->why, "why");
  history.note(3 + 256, 259, 1, {});
  EXPECT_EQ(history.find(3), nullptr);
  EXPECT_EQ(history.givenUp(3), nullptr);
  EXPECT_EQ(history.givenUp(3 + 256), nullptr);
  history.noteGivenUp(3, 2, "why");
  EXPECT_EQ(history.givenUp(3), nullptr);
}

}  // namespace
}  // namespace shardwire::internal
