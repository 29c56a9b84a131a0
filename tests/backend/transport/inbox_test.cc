#include "backend/transport/shm/inbox.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "backend/base/memfd.h"

namespace shardwire::internal {
namespace {

TEST(Inbox, TakesAtMostEightMebibytesPerPeerByDefault) {
  EXPECT_LE(2 * slotBytes(laneCapacities(Options{})), std::size_t{8} << 20);  // both directions
}

TEST(Inbox, LanesFollowTheOptions) {
  Options options;
  options.ringBytes = 3000000;
  options.inlineBytes = 20000;
  const auto lanes = laneCapacities(options);
  EXPECT_EQ(lanes[1], std::uint64_t{4} << 20);
  EXPECT_GE(maxRingFrameBytes(lanes[0]), options.inlineBytes + 1024);
  options.ringBytes = 0;
  options.inlineBytes = 0;
  for (const std::uint64_t bytes : laneCapacities(options)) {
    EXPECT_GE(bytes, 4096U);
  }
}

TEST(Inbox, SlotsOfPeersAreApart) {
  const auto inbox = Inbox::create(4, Options{});
  ASSERT_TRUE(inbox.isOk()) << inbox.status().message();
  const auto mapped = Inbox::map((*inbox)->fd(), 0, 4, 2);
  ASSERT_TRUE(mapped.isOk()) << mapped.status().message();
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    InboxSlot theirs = (*mapped)->slot(2);
    theirs.words(lane)->written.store(1000 + static_cast<std::uint64_t>(lane));
    const auto last = theirs.laneBytes[static_cast<std::size_t>(lane)] - 1;
    theirs.laneData(lane)[last] = std::byte{0x77};
    for (Rank peer = 0; peer < 4; ++peer) {
      const InboxSlot mine = (*inbox)->slot(peer);
      EXPECT_EQ(mine.words(lane)->written.load(), peer == 2 ? 1000 + static_cast<std::uint64_t>(lane) : 0);
      EXPECT_EQ(mine.laneData(lane)[last], peer == 2 ? std::byte{0x77} : std::byte{0});
    }
  }
  EXPECT_THROW((*mapped)->slot(1), std::logic_error);
}

TEST(Inbox, IsFoundInItsProcessAsLongAsItLives) {
  auto inbox = Inbox::create(2, Options{});
  ASSERT_TRUE(inbox.isOk());
  const RandomId id = (*inbox)->id();
  EXPECT_EQ(Inbox::findInProcess(id), *inbox);
  inbox->reset();
  EXPECT_EQ(Inbox::findInProcess(id), nullptr);
}

TEST(Inbox, RefusesToMapWhatIsNone) {
  const auto inbox = Inbox::create(2, Options{});
  ASSERT_TRUE(inbox.isOk());
  EXPECT_EQ(Inbox::map((*inbox)->fd(), 0, 3, 1).status().code(), StatusCode::kMismatch);
  const auto empty = makeMemfd("shardwire-test", 8192);
  EXPECT_EQ(Inbox::map(empty->get(), 0, 2, 1).status().code(), StatusCode::kUnsupported);
  const auto tiny = makeMemfd("shardwire-test", 100);
  EXPECT_EQ(Inbox::map(tiny->get(), 0, 2, 1).status().code(), StatusCode::kMismatch);
  // Lanes larger than the segment.
  auto& header = (*inbox)->header();
  header.laneBytes[1] *= 2;
  EXPECT_EQ(Inbox::map((*inbox)->fd(), 0, 2, 1).status().code(), StatusCode::kMismatch);
  header.laneBytes[1] = 12345;
  EXPECT_FALSE(Inbox::map((*inbox)->fd(), 0, 2, 1).isOk());
}

}  // namespace
}  // namespace shardwire::internal
