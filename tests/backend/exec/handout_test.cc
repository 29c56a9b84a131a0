// Blobs of rank 0's own for each rank, over fake links.
#include "backend/exec/handout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/backend/exec/fake_group.h"

namespace shardwire::internal {
namespace {

constexpr std::uint64_t kHandoutHash = 78;

std::vector<std::shared_ptr<Handout>> handoutsOf(FakeGroup& group) {
  std::vector<std::shared_ptr<Handout>> all;
  for (Rank rank = 0; rank < group.size(); ++rank) {
    all.push_back(std::make_shared<Handout>(group.size(), rank));
    all.back()->fingerprint = kHandoutHash;
    group[rank].start(*all.back(), 5);
  }
  return all;
}

TEST(Handout, GivesEachRankItsOwnAsItGetsReady) {
  FakeGroup group(4);
  group.forEachLink([](FakeConnection& link) { link.maxFrames = 2; });
  auto all = handoutsOf(group);
  const std::vector<std::string> blobs = {"", std::string(10000, 'a'), "b", std::string(3000, 'c')};
  all[0]->give(3, blobs[3]);
  for (Rank rank = 0; rank < 4; ++rank) {
    group[rank].step(*all[static_cast<std::size_t>(rank)]);
  }
  EXPECT_FALSE(all[0]->finished());
  EXPECT_FALSE(all[3]->finished());  // more than two frames
  EXPECT_TRUE(all[0]->needs(3));
  EXPECT_FALSE(all[0]->needs(1));
  EXPECT_TRUE(all[1]->needs(0));
  EXPECT_FALSE(all[1]->needs(2));
  EXPECT_EQ(all[0]->waitingFor(), "rank 3 reads nothing");
  EXPECT_EQ(all[1]->waitingFor(), "rank 0 did not send this rank's plan");
  all[0]->give(1, blobs[1]);
  all[0]->give(2, blobs[2]);
  group.run(all);
  for (std::size_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(all[rank]->received(), blobs[rank]);
  }
}

TEST(Handout, IsOverForAGroupOfOne) {
  EXPECT_TRUE(Handout(1, 0).finished());
}

TEST(Handout, RefusesPartsThatDoNotFit) {
  const OperationTag tag{5, kHandoutHash};
  const std::vector<std::pair<Rank, std::vector<Bytes>>> cases = {
      {0, {frameOf(BlobFrame{tag, 1, 4}, bytesOf("bcd"))}},  // the beginning is missing
      {0,
       {frameOf(BlobFrame{tag, 0, 4}, bytesOf("ab")), frameOf(BlobFrame{tag, 1, 4}, bytesOf("bcd"))}},  // a part twice
      {0,
       {frameOf(BlobFrame{tag, 0, 4}, bytesOf("ab")), frameOf(BlobFrame{tag, 2, 9}, bytesOf("cd"))}},  // another length
      {0, {frameOf(BlobFrame{tag, 0, 2}, bytesOf("ab")), frameOf(BlobFrame{tag, 2, 2}, {})}},          // more than all
      {2, {frameOf(BlobFrame{tag, 0, 2}, bytesOf("ab"))}},  // not from rank 0
  };
  for (const auto& [from, frames] : cases) {
    FakeGroup group(3);
    const auto all = handoutsOf(group);
    for (const Bytes& frame : frames) {
      group[from].to(1).sent(Lane::kControl).push_back(frame);
    }
    group[1].step(*all[1]);
    EXPECT_EQ(group[1].failure.code(), StatusCode::kInternal);
    EXPECT_NE(group[1].failure.message().find("sent a part of a message that does not fit the test's operation"),
              std::string::npos)
        << group[1].failure.message();
  }
}

TEST(Handout, RefusesThatARankOutsideOfTheGroupGaveItUp) {
  for (const std::uint32_t origin : {2U, 3U}) {
    FakeGroup group(3);
    const auto all = handoutsOf(group);
    group[0].to(1).sent(Lane::kControl).push_back(frameOf(CancelFrame{{5, kHandoutHash}, origin}, bytesOf("is late")));
    group[1].step(*all[1]);
    EXPECT_EQ(group[1].finished.has_value(), origin == 2);
    EXPECT_EQ(group[1].failure.message(),
              origin == 2 ? "" : "rank 0 sent a frame (kind 4: cancel) that does not fit the test's operation");
  }
}

TEST(Handout, GivenUpByOneIsReportedToAll) {
  FakeGroup group(4);
  const auto all = handoutsOf(group);
  group[2]
      .to(0)
      .sent(Lane::kControl)
      .push_back(frameOf(CancelFrame{{5, kHandoutHash}}, bytesOf("reached its timeout")));
  for (const Rank rank : {0, 1, 3}) {
    group[rank].step(*all[static_cast<std::size_t>(rank)]);
    ASSERT_TRUE(group[rank].finished.has_value()) << rank;
    EXPECT_EQ(*group[rank].finished,
              Status(StatusCode::kTimeout, fmt::format("the test's operation was given up by rank 2 while rank {} "
                                                       "waited, too: it reached its timeout",
                                                       rank)));
  }
  EXPECT_TRUE(
      group[2].to(0).other->sent(Lane::kControl).empty());  // the rank that gave the exchange up is not notified
}

}  // namespace
}  // namespace shardwire::internal
