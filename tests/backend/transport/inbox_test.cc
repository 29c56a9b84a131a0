// The inbox of a rank in the arena of its process. First sizes, lanes and the slots of peers; then the registry of
// inboxes and wrong mappings; then how long the memory stays, for peers that write or come late; at last the wake-up of
// an idle owner, and a peer process that is gone.
#include "backend/transport/shm/inbox.h"

#include <gtest/gtest.h>

#include "backend/transport/shm/shm_fabric.h"

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
  EXPECT_GE(maxLaneFrameBytes(lanes[0]), options.inlineBytes + 1024);
  options.ringBytes = 0;
  options.inlineBytes = 0;
  for (const std::uint64_t bytes : laneCapacities(options)) {
    EXPECT_GE(bytes, 4096U);
  }
}

Result<std::shared_ptr<Inbox>> makeInbox(int worldSize) {
  auto fabric = ShmFabric::instance();
  SW_RETURN_IF_ERROR(fabric.status());
  return Inbox::create(worldSize, Options{}, *fabric);
}

// The address of the inbox, as a peer gets the address.
Inbox::At placeOf(const Inbox& inbox) {
  ShmFabric& fabric = *inbox.fabric();
  return {fabric.arena().fd(), fabric.arena().bytes(), inbox.offset(), inbox.id(), &fabric.page()};
}

TEST(Inbox, SlotsOfPeersAreApart) {
  const auto inbox = makeInbox(4);
  ASSERT_TRUE(inbox.isOk()) << inbox.status().message();
  const auto mapped = Inbox::map(placeOf(**inbox), 0, 4, 2);
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
  auto inbox = makeInbox(2);
  ASSERT_TRUE(inbox.isOk());
  const RandomId id = (*inbox)->id();
  EXPECT_EQ(Inbox::findInProcess(id), *inbox);
  inbox->reset();
  EXPECT_EQ(Inbox::findInProcess(id), nullptr);
}

TEST(Inbox, RefusesToMapWhatIsNone) {
  const auto inbox = makeInbox(2);
  ASSERT_TRUE(inbox.isOk());
  const Inbox::At right = placeOf(**inbox);
  EXPECT_EQ(Inbox::map(right, 0, 3, 1).status().code(), StatusCode::kMismatch);
  for (const std::uint64_t offset :
       {right.offset + 1, right.arenaBytes, right.arenaBytes + 4096, ~std::uint64_t{4095}}) {
    Inbox::At at = right;
    at.offset = offset;
    EXPECT_EQ(Inbox::map(at, 0, 2, 1).status().code(), StatusCode::kMismatch) << offset;
  }
  Inbox::At at = right;
  at.offset = right.offset + inboxHeaderBytes(2);  // a slot
  EXPECT_FALSE(Inbox::map(at, 0, 2, 1).isOk());
  at = right;
  at.id = RandomId{{1, 2}};
  EXPECT_EQ(Inbox::map(at, 0, 2, 1).status().code(), StatusCode::kMismatch);
  at = right;
  at.arenaBytes = right.offset + inboxHeaderBytes(2);  // only the header fits
  EXPECT_EQ(Inbox::map(at, 0, 2, 1).status().code(), StatusCode::kMismatch);
  auto& header = (*inbox)->header();
  header.laneBytes[1] = 12345;
  EXPECT_FALSE(Inbox::map(right, 0, 2, 1).isOk());
}

// Memory of an inbox stays as long as a peer may write there: until each peer has closed the inbox.
TEST(Inbox, StaysAsLongAsAPeerMayWriteToIt) {
  auto inbox = makeInbox(3);
  ASSERT_TRUE(inbox.isOk());
  const std::shared_ptr<ShmFabric> fabric = (*inbox)->fabric();
  const Inbox::At at = placeOf(**inbox);
  const std::size_t before = fabric->numRemains();
  const auto mapped = Inbox::map(at, 0, 3, 1);
  ASSERT_TRUE(mapped.isOk());
  SlotReader& reader = *(*mapped)->slot(1).reader();
  reader.process = fabric->address().process;
  reader.state = static_cast<std::uint32_t>(ReaderState::kHere);
  (*mapped)->announce(1);
  inbox->reset();
  EXPECT_EQ(fabric->numRemains(), before + 1);
  EXPECT_EQ((*mapped)->header().magic, kInboxMagic);
  reader.state = static_cast<std::uint32_t>(ReaderState::kGone);
  fabric->clearRemains();
  EXPECT_EQ(fabric->numRemains(), before);
  EXPECT_EQ((*mapped)->header().magic, 0U);  // the memory is gone, and the place is never another's
  EXPECT_EQ(Inbox::map(at, 0, 3, 2).status().code(), StatusCode::kPeerFailed);
  const auto next = makeInbox(3);
  ASSERT_TRUE(next.isOk());
  EXPECT_GT((*next)->offset(), at.offset);
}

// The peer found the header while another peer kept the memory, and announces its presence when the owner has left.
TEST(Inbox, StaysForAPeerThatComesWhenItsOwnerHasLeft) {
  auto inbox = makeInbox(3);
  ASSERT_TRUE(inbox.isOk());
  const std::shared_ptr<ShmFabric> fabric = (*inbox)->fabric();
  const Inbox::At at = placeOf(**inbox);
  const std::size_t before = fabric->numRemains();
  const auto come = [&](const std::shared_ptr<Inbox>& mapped, Rank rank, ReaderState state) {
    mapped->slot(rank).reader()->process = fabric->address().process;
    mapped->slot(rank).reader()->state = static_cast<std::uint32_t>(state);
    mapped->announce(rank);
  };
  const auto early = Inbox::map(at, 0, 3, 1);
  ASSERT_TRUE(early.isOk());
  come(*early, 1, ReaderState::kHere);
  inbox->reset();
  const auto late = Inbox::map(at, 0, 3, 2);
  ASSERT_TRUE(late.isOk());
  come(*late, 2, ReaderState::kHere);
  come(*early, 1, ReaderState::kGone);
  fabric->clearRemains();
  EXPECT_EQ(fabric->numRemains(), before + 1);
  come(*late, 2, ReaderState::kGone);
  fabric->clearRemains();
  EXPECT_EQ(fabric->numRemains(), before);
}

// The last peer goes while a thread looks for memory without peers: the call for this end finds an empty list, since
// the other thread has it.
TEST(Inbox, APeerThatGoesBetweenTwoLooksIsNoticed) {
  const auto fabric = ShmFabric::instance();
  ASSERT_TRUE(fabric.isOk());
  const auto offset = (*fabric)->arena().take(1);
  ASSERT_TRUE(offset.isOk());
  const std::size_t before = (*fabric)->numRemains();
  bool isGone = false;
  (*fabric)->keepUntilFree({{}, *offset, 1, [&](ShmFabric& all) {
                              if (!isGone) {
                                isGone = true;  // after this look, and before the list is there again
                                all.clearRemains();
                                return false;
                              }
                              return true;
                            }});
  EXPECT_EQ((*fabric)->numRemains(), before);
  (*fabric)->clearRemains();  // `isGone` ends with this test
}

// A rank that joins peers late looks only at announced peers.
TEST(Inbox, WakesAnOwnerThatAwaitsAnnouncements) {
  const auto inbox = makeInbox(130);
  ASSERT_TRUE(inbox.isOk());
  const std::shared_ptr<ShmFabric> fabric = (*inbox)->fabric();
  const auto mapped = Inbox::map(placeOf(**inbox), 0, 130, 129);
  ASSERT_TRUE(mapped.isOk());
  const std::uint32_t before = fabric->page().bell.load();
  (*mapped)->announce(129);
  EXPECT_EQ((*inbox)->numAnnounced(), 1u);
  EXPECT_EQ((*inbox)->announcedWord(2), std::uint64_t{1} << 1);
  EXPECT_EQ((*inbox)->announcedWord(0) | (*inbox)->announcedWord(1), 0u);
  EXPECT_EQ(fabric->page().bell.load(), before);
  (*inbox)->awaitAnnouncements();
  (*mapped)->announce(3);
  EXPECT_EQ((*inbox)->numAnnounced(), 2u);
  EXPECT_EQ(fabric->page().bell.load(), before + 1);
}

// A process without a link to this process (any more) writes nothing into the inbox.
TEST(Inbox, DoesNotStayForAProcessThatIsGone) {
  auto inbox = makeInbox(2);
  ASSERT_TRUE(inbox.isOk());
  const std::shared_ptr<ShmFabric> fabric = (*inbox)->fabric();
  const std::size_t before = fabric->numRemains();
  SlotReader& reader = *(*inbox)->slot(1).reader();
  reader.process = RandomId{{7, 7}};
  reader.state = static_cast<std::uint32_t>(ReaderState::kHere);
  (*inbox)->announce(1);
  inbox->reset();
  EXPECT_EQ(fabric->numRemains(), before);
}

}  // namespace
}  // namespace shardwire::internal
