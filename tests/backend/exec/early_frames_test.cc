#include "backend/exec/early_frames.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "backend/exec/frame.h"

namespace shardwire::internal {
namespace {

std::vector<std::byte> blobFrame(std::uint64_t seq, std::uint64_t fingerprint) {
  std::vector<std::byte> bytes(kHeadBytes<BlobFrame>);
  BlobFrame frame{};
  frame.operation = {seq, fingerprint};
  writeFrame(std::span(bytes), frame, 0);
  return bytes;
}

TEST(EarlyFrames, GivesTheFramesOfOneOperationInTheirOrder) {
  EarlyFrames early;
  const std::array first{std::byte{1}};
  const std::array second{std::byte{2}, std::byte{2}};
  early.keep(1, 7, first);
  early.keep(2, 8, first);
  early.keep(3, 7, second);
  std::vector<std::pair<Rank, std::size_t>> taken;
  const auto take = [&](Rank from, std::span<const std::byte> frame) { taken.emplace_back(from, frame.size()); };
  early.give(7, take);
  EXPECT_EQ(taken, (std::vector<std::pair<Rank, std::size_t>>{{1, 1}, {3, 2}}));
  EXPECT_FALSE(early.empty());
  early.give(8, take);
  EXPECT_TRUE(early.empty());
  EXPECT_EQ(taken.back().first, 2);
}

TEST(EarlyFrames, NamesThePeerWhoseBlobIsAhead) {
  EarlyFrames early;
  early.keep(2, 5, blobFrame(5, 11));
  const std::array<Rank, 2> peers{1, 2};
  const std::array<std::uint64_t, 1> ours{11};
  const std::array<std::uint64_t, 1> another{12};
  EXPECT_EQ(early.firstBlobFrom(5, peers, ours), 2);
  EXPECT_EQ(early.firstBlobFrom(5, peers, another), -1);
  EXPECT_EQ(early.firstBlobFrom(6, peers, ours), -1);
  EXPECT_EQ(early.firstBlobFrom(5, std::span(peers).first(1), ours), -1);
}

}  // namespace
}  // namespace shardwire::internal
