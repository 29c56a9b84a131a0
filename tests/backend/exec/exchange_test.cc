// Blobs from all ranks to all, over fake links, stepped by hand. First small groups, where each rank sends to each:
// late blobs, wrong parts, a peer that gives up. Then ExchangeOfMany, along the tree: few links, absent ranks, notices
// of a rank that gave up, and broken frames.
#include "backend/exec/exchange.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/backend/exec/fake_group.h"

namespace shardwire::internal {
namespace {

constexpr std::uint64_t kHash = 77;

std::shared_ptr<Exchange> exchangeOf(FakeRank& rank, std::string mine) {
  auto exchange = std::make_shared<Exchange>(std::move(mine), rank.context.worldSize, rank.context.rank);
  exchange->fingerprint = kHash;
  rank.start(*exchange, 3);
  return exchange;
}

TEST(Exchange, GivesEveryRankAllBlobs) {
  FakeGroup group(3);
  group.forEachLink([](FakeConnection& link) { link.maxFrames = 2; });
  const std::vector<std::string> blobs = {std::string(10000, 'a'), "", std::string(1024, 'c')};
  std::vector<std::shared_ptr<Exchange>> all;
  for (Rank rank = 0; rank < 3; ++rank) {
    all.push_back(exchangeOf(group[rank], blobs[static_cast<std::size_t>(rank)]));
  }
  group.run(all);
  for (const auto& each : all) {
    EXPECT_EQ(each->blobs(), blobs);
  }
}

// One rank takes part at once, and gives its blob only later.
TEST(Exchange, WaitsForABlobThatIsGivenLater) {
  for (const Rank many : {1, 2, 3, 33}) {
    for (const Rank late : {0, many - 1}) {
      FakeGroup group(many);
      std::vector<std::string> blobs;
      std::vector<std::shared_ptr<Exchange>> all;
      for (Rank rank = 0; rank < many; ++rank) {
        blobs.push_back(fmt::format("of rank {}", rank));
        const auto mine = rank == late ? std::nullopt : std::optional(blobs.back());
        all.push_back(std::make_shared<Exchange>(mine, many, rank));
        all.back()->fingerprint = kHash;
        group[rank].start(*all.back(), 3);
      }
      for (int turn = 0; turn < 5; ++turn) {
        for (Rank rank = 0; rank < many; ++rank) {
          group[rank].step(*all[static_cast<std::size_t>(rank)]);
          EXPECT_FALSE(all[static_cast<std::size_t>(rank)]->finished());
        }
      }
      all[static_cast<std::size_t>(late)]->give(blobs[static_cast<std::size_t>(late)]);
      group.run(all);
      for (const auto& each : all) {
        EXPECT_EQ(each->blobs(), blobs);
      }
    }
  }
}

// Before the table comes a rank needs no link to its children, and afterwards the rank waits for each of them.
TEST(Exchange, WantsTheLinksToItsChildrenOnceTheTableComes) {
  constexpr Rank kMany = 33;
  FakeGroup group(kMany);
  std::vector<std::shared_ptr<Exchange>> all;
  for (Rank rank = 0; rank < kMany; ++rank) {
    all.push_back(exchangeOf(group[rank], fmt::format("of rank {}", rank)));
  }
  group.run(all);
  for (Rank rank = 1; rank < kMany; ++rank) {
    EXPECT_EQ(group[rank].numWants, 1) << rank;
  }
}

TEST(Exchange, RefusesPartsThatDoNotFit) {
  const OperationTag tag{3, kHash};
  const std::vector<std::vector<Bytes>> cases = {
      {frameOf(BlobFrame{tag, 1, 4}, bytesOf("bcd"))},  // the beginning is missing
      {frameOf(BlobFrame{tag, 0, 4}, bytesOf("ab")), frameOf(BlobFrame{tag, 1, 4}, bytesOf("bcd"))},  // a part twice
      {frameOf(BlobFrame{tag, 0, 4}, bytesOf("ab")), frameOf(BlobFrame{tag, 2, 9}, bytesOf("cd"))},   // another length
      {frameOf(BlobFrame{tag, 0, 2}, bytesOf("ab")), frameOf(BlobFrame{tag, 2, 2}, {})},              // more than all
      {frameOf(BlobFrame{tag, 0, 2}, {})},                                                            // nothing
  };
  for (const auto& frames : cases) {
    FakeGroup group(2);
    const auto exchange = exchangeOf(group[0], "mine");
    for (const Bytes& frame : frames) {
      group[1].to(0).sent(Lane::kControl).push_back(frame);
    }
    group[0].step(*exchange);
    EXPECT_EQ(group[0].failure.code(), StatusCode::kInternal);
    EXPECT_NE(group[0].failure.message().find("rank 1 sent a part of a message that does not fit the test's operation"),
              std::string::npos)
        << group[0].failure.message();
  }
}

TEST(Exchange, EndsWhenAPeerGivesItUp) {
  FakeGroup group(2);
  const auto exchange = exchangeOf(group[0], "mine");
  group[1].to(0).sent(Lane::kControl).push_back(frameOf(CancelFrame{{3, kHash}}, bytesOf("reached its timeout")));
  group[0].step(*exchange);
  ASSERT_TRUE(group[0].finished.has_value());
  EXPECT_EQ(group[0].finished->message(),
            "the test's operation was given up by rank 1 before rank 0 came: it reached its timeout");
}

// ---- more ranks than kFewRanks: to rank 0, and down a tree

constexpr Rank kMany = 70;

std::vector<std::shared_ptr<Exchange>> exchangesOf(FakeGroup& group, const std::vector<std::string>& blobs) {
  std::vector<std::shared_ptr<Exchange>> all;
  for (Rank rank = 0; rank < group.size(); ++rank) {
    all.push_back(exchangeOf(group[rank], blobs[static_cast<std::size_t>(rank)]));
  }
  return all;
}

std::vector<std::string> blobsOf(Rank many) {
  std::vector<std::string> blobs;
  for (Rank rank = 0; rank < many; ++rank) {
    blobs.push_back(
        std::string(static_cast<std::size_t>(rank % 5 == 0 ? 0 : rank * 37), static_cast<char>('a' + rank % 26)));
  }
  blobs[3] = std::string(5000, 'x');  // more than a frame
  return blobs;
}

TEST(ExchangeOfMany, GivesEveryRankAllBlobs) {
  for (const Rank many : {17, 33, kMany}) {
    FakeGroup group(many);
    group.forEachLink([](FakeConnection& link) { link.maxFrames = 2; });
    const std::vector<std::string> blobs = blobsOf(many);
    auto all = exchangesOf(group, blobs);
    group.run(all);
    for (const auto& each : all) {
      EXPECT_EQ(each->blobs(), blobs);
      for (Rank peer = 0; peer < many; ++peer) {
        EXPECT_FALSE(each->needs(peer));
      }
    }
  }
}

TEST(ExchangeOfMany, Rank0MayKeepAllBlobsToItself) {
  for (const bool isKept : {true, false}) {
    FakeGroup group(kMany);
    const std::vector<std::string> blobs = blobsOf(kMany);
    auto all = exchangesOf(group, blobs);
    for (const auto& each : all) {
      each->keepsForItself = [&](std::span<const std::string> seen) {
        EXPECT_TRUE(std::equal(seen.begin(), seen.end(), blobs.begin(), blobs.end()));
        return isKept ? std::optional<std::string>("kept") : std::nullopt;
      };
    }
    group.run(all);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      EXPECT_EQ(all[rank]->answer(), isKept ? std::optional<std::string>("kept") : std::nullopt);
      EXPECT_EQ(all[rank]->blobs()[3] == blobs[3], !isKept || rank == 0 || rank == 3) << rank;
    }
  }
}

TEST(ExchangeOfMany, NeedsFewLinks) {
  FakeGroup group(kMany);
  const auto all = exchangesOf(group, blobsOf(kMany));
  const auto neededBy = [&](Rank rank) {
    std::vector<Rank> peers;
    for (Rank peer = 0; peer < kMany; ++peer) {
      if (peer != rank && all[static_cast<std::size_t>(rank)]->needs(peer)) {
        peers.push_back(peer);
      }
    }
    return peers;
  };
  EXPECT_EQ(neededBy(0).size(), 69u);
  EXPECT_EQ(neededBy(7), std::vector<Rank>{0});
  EXPECT_EQ(neededBy(8), std::vector<Rank>{0});
  EXPECT_EQ(neededBy(9), (std::vector<Rank>{0, 8}));
  EXPECT_EQ(neededBy(69), (std::vector<Rank>{0, 64}));
  // Frames go over the links of the tree and to rank 0, and nowhere else.
  for (Rank a = 0; a < kMany; ++a) {
    for (Rank b = 1; b < kMany; ++b) {
      if (a != b && a != 0 && b / 8 * 8 != a && a / 8 * 8 != b) {
        group[a].to(b).maxFrames = 0;
      }
    }
  }
  auto running = all;
  group.run(running);
}

TEST(ExchangeOfMany, IsOverForARankWhenAllBelowItHaveEverything) {
  FakeGroup group(17);
  const auto all = exchangesOf(group, blobsOf(17));
  for (int turn = 0; turn < 40; ++turn) {
    for (Rank rank = 0; rank < 17; ++rank) {
      if (rank != 12) {
        group[rank].step(*all[static_cast<std::size_t>(rank)]);
      } else if (turn == 0) {
        group[rank].step(*all[12]);  // sends the blob of rank 12, and nothing more
      }
    }
  }
  for (Rank rank = 0; rank < 17; ++rank) {
    EXPECT_EQ(all[static_cast<std::size_t>(rank)]->finished(), rank != 0 && rank != 8 && rank != 12) << rank;
  }
  EXPECT_EQ(all[8]->waitingFor(), "rank 12 did not confirm what all ranks gave");
  EXPECT_EQ(all[0]->waitingFor(), "rank 8 did not confirm what all ranks gave");
  EXPECT_TRUE(all[8]->needs(12));
  EXPECT_FALSE(all[8]->needs(0));
}

TEST(ExchangeOfMany, NamesExactlyWhoDidNotCome) {
  FakeGroup group(kMany);
  const auto all = exchangesOf(group, blobsOf(kMany));
  const std::vector<Rank> absent = {2, 8, 20, 21, 22, 23, 69};
  for (int turn = 0; turn < 40; ++turn) {
    for (Rank rank = 0; rank < kMany; ++rank) {
      if (std::find(absent.begin(), absent.end(), rank) == absent.end()) {
        group[rank].step(*all[static_cast<std::size_t>(rank)]);
      }
    }
  }
  EXPECT_EQ(all[0]->waitingFor(), "ranks 2, 8, 20 to 23, 69 did not arrive");
  EXPECT_EQ(all[1]->waitingFor(), "what rank 0 collects from all ranks did not come");
  EXPECT_EQ(all[9]->waitingFor(), "what rank 0 collects from all ranks did not come by way of rank 8");
}

// As the engine does, for the ranks with links to `rank`.
void giveUp(FakeGroup& group, Rank rank, const std::vector<Rank>& linked) {
  for (const Rank peer : linked) {
    group[rank]
        .to(peer)
        .sent(Lane::kControl)
        .push_back(frameOf(CancelFrame{{3, kHash}}, bytesOf("reached its timeout: nothing came")));
  }
}

TEST(ExchangeOfMany, GivenUpByOneIsReportedToAllWithTheNameAndTheMissingRank) {
  FakeGroup group(kMany);
  const auto all = exchangesOf(group, blobsOf(kMany));
  // Rank 20 does not call; 33 gives up, and has links to rank 0 and to the parent.
  for (Rank rank = 0; rank < kMany; ++rank) {
    if (rank != 20) {
      group[rank].step(*all[static_cast<std::size_t>(rank)]);
    }
  }
  group[0].step(*all[0]);
  giveUp(group, 33, {0, 32});
  for (Rank rank = 0; rank < kMany; ++rank) {
    if (rank != 33) {
      group[rank].step(*all[static_cast<std::size_t>(rank)]);
      ASSERT_TRUE(group[rank].finished.has_value()) << rank;
      EXPECT_EQ(group[rank].finished->code(), StatusCode::kTimeout);
      const std::string when = rank == 20 ? "before rank 20 came" : fmt::format("while rank {} waited, too", rank);
      EXPECT_EQ(group[rank].finished->message(),
                fmt::format("the test's operation was given up by rank 33 {}: it reached its timeout: "
                            "nothing came; rank 0 knows that rank 20 did not arrive",
                            when));
    }
  }
}

// Rank 0 is late: rank 0 passes on no notice before it arrives, and then only to ranks that are still to arrive.
TEST(ExchangeOfMany, GivenUpIsPassedOnAlongTheTreeWhereRank0IsAbsent) {
  FakeGroup group(kMany);
  const auto all = exchangesOf(group, blobsOf(kMany));
  for (Rank rank = 1; rank < kMany; ++rank) {
    group[rank].step(*all[static_cast<std::size_t>(rank)]);
  }
  giveUp(group, 9, {0, 8});
  for (int turn = 0; turn < 3; ++turn) {
    for (Rank rank = 8; rank < 16; ++rank) {
      if (rank != 9) {
        group[rank].step(*all[static_cast<std::size_t>(rank)]);
      }
    }
  }
  for (Rank rank = 8; rank < 16; ++rank) {
    EXPECT_EQ(group[rank].finished.has_value(), rank != 9) << rank;
  }
  EXPECT_EQ(
      group[15].finished->message(),
      "the test's operation was given up by rank 9 while rank 15 waited, too: it reached its timeout: nothing came");
  EXPECT_FALSE(group[16].finished.has_value());
  group[0].step(*all[0]);
  ASSERT_TRUE(group[0].finished.has_value());
  EXPECT_EQ(group[0].finished->message(),
            "the test's operation was given up by rank 9 before rank 0 came: it reached its timeout: nothing came");
  for (Rank rank = 16; rank < kMany; ++rank) {
    group[rank].step(*all[static_cast<std::size_t>(rank)]);
    EXPECT_TRUE(group[rank].finished.has_value()) << rank;
  }
}

TEST(ExchangeOfMany, RefusesFramesOfWhoHasNothingToSay) {
  const OperationTag tag{3, kHash};
  struct Case {
    Rank to;
    Rank from;
    std::vector<Bytes> frames;
    std::string text;
  };
  const std::vector<Case> cases = {
      {9, 10, {frameOf(BlobFrame{tag, 0, 4}, bytesOf("blob"))}, "rank 10 sent a part of a message that does not fit"},
      {9, 0, {frameOf(BlobFrame{tag, 0, 4}, bytesOf("blob"))}, "rank 0 sent a part of a message that does not fit"},
      {9, 8, {frameOf(BlobFrame{tag, 2, 4}, bytesOf("ob"))}, "rank 8 sent a part of a message that does not fit"},
      {9,
       8,
       {frameOf(BlobFrame{tag, 0, 4}, bytesOf("blob"))},
       "rank 8 sent what all ranks gave for the test's operation in a form"},
      {0,
       5,
       {frameOf(BlobFrame{tag, 0, 4}, bytesOf("ab")), frameOf(BlobFrame{tag, 2, 9}, bytesOf("cd"))},
       "(offset 2 of 9, expected 2)"},
      {0, 8, {frameOf(AckFrame{tag})}, "rank 8 sent a frame (kind 2: ack) that does not fit"},
      {8, 0, {frameOf(AckFrame{tag})}, "rank 0 sent a frame (kind 2: ack) that does not fit"},
      {8, 0, {frameOf(CancelFrame{tag, 70})}, "rank 0 sent a frame (kind 4: cancel) that does not fit"},
  };
  for (const Case& each : cases) {
    FakeGroup group(17);
    const auto exchange = exchangeOf(group[each.to], "mine");
    for (const Bytes& frame : each.frames) {
      group[each.from].to(each.to).sent(Lane::kControl).push_back(frame);
    }
    group[each.to].step(*exchange);
    EXPECT_EQ(group[each.to].failure.code(), StatusCode::kInternal) << each.text;
    EXPECT_NE(group[each.to].failure.message().find(each.text), std::string::npos) << group[each.to].failure.message();
  }
}

// A table in which a rank does not find its own blob belongs to another operation, or is broken.
TEST(ExchangeOfMany, RefusesATableWithoutItsOwnBlob) {
  FakeGroup group(17);
  const auto exchange = exchangeOf(group[9], "mine");
  std::string table;
  for (Rank rank = 0; rank < 17; ++rank) {
    table += std::string("\4") + (rank == 9 ? "ours" : "blob");
  }
  group[8].to(9).sent(Lane::kControl).push_back(frameOf(BlobFrame{{3, kHash}, 0, table.size()}, bytesOf(table)));
  group[9].step(*exchange);
  EXPECT_EQ(group[9].failure.code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace shardwire::internal
