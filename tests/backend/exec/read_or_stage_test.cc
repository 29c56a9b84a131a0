// The choice between reading and staging follows the measured times, also when these change.
#include "backend/exec/read_or_stage.h"

#include <gtest/gtest.h>

namespace shardwire::internal {
namespace {

using std::chrono::microseconds;

constexpr std::size_t kBytes = std::size_t{1} << 20;

// The number of reads among `messages`, of which a read takes `read` and a staged message `staged`.
int readsAmong(ReadOrStage& way, int messages, Duration read, Duration staged, std::size_t bytes = kBytes) {
  int reads = 0;
  for (int i = 0; i < messages; ++i) {
    const bool isRead = way.nextIsRead(bytes);
    way.note(bytes, isRead, isRead ? read : staged);
    reads += isRead ? 1 : 0;
  }
  return reads;
}

TEST(ReadOrStage, TriesBothAndKeepsTheFasterWay) {
  ReadOrStage reads;
  EXPECT_EQ(readsAmong(reads, 8, microseconds(100), microseconds(200)), 4);
  EXPECT_EQ(readsAmong(reads, 320, microseconds(100), microseconds(200)), 315);
  ReadOrStage stages;
  EXPECT_EQ(readsAmong(stages, 8, microseconds(200), microseconds(100)), 4);
  EXPECT_EQ(readsAmong(stages, 320, microseconds(200), microseconds(100)), 5);
}

TEST(ReadOrStage, FollowsAChangeOfTheMachine) {
  ReadOrStage way;
  readsAmong(way, 100, microseconds(100), microseconds(200));
  readsAmong(way, 100, microseconds(100), microseconds(50));
  EXPECT_LE(readsAmong(way, 320, microseconds(100), microseconds(50)), 10);
  readsAmong(way, 100, microseconds(100), microseconds(400));
  EXPECT_GE(readsAmong(way, 320, microseconds(100), microseconds(400)), 310);
}

TEST(ReadOrStage, IsNotMisledByOneLongMessage) {
  ReadOrStage way;
  readsAmong(way, 50, microseconds(100), microseconds(200));
  way.note(kBytes, true, std::chrono::milliseconds(100));
  readsAmong(way, 64, microseconds(100), microseconds(200));
  EXPECT_GE(readsAmong(way, 320, microseconds(100), microseconds(200)), 309);
}

TEST(ReadOrStage, MeasuresEachSizeAlone) {
  ReadOrStage way;
  readsAmong(way, 100, microseconds(100), microseconds(200));
  readsAmong(way, 100, microseconds(20), microseconds(10), kBytes / 16);
  EXPECT_GE(readsAmong(way, 64, microseconds(100), microseconds(200)), 62);
  EXPECT_LE(readsAmong(way, 64, microseconds(20), microseconds(10), kBytes / 16), 2);
}

}  // namespace
}  // namespace shardwire::internal
