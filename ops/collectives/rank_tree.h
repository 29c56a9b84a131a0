// The tree by which many ranks gather data on rank 0 and receive data from there. The first of each `width` neighbours
// stands for all of them, the first of each `width` such ranks again for all of those, and so on up to rank 0. By
// eights:
//
//   level 0   8 <- 9 ... 15          level 1   0 <- 8, 16, ... 56          level 2   0 <- 64, 128, ...
//
// So the ranks below a rank are a block of neighbours, in rank order: [rank, rank + widthOf(level)). The blocks are
// made of neighbours because neighbours mostly share a host, so few bytes cross between hosts. n ranks need n - 1 links
// in all; most ranks need one link, and rank 0 needs width - 1 links for each level. A wide tree has fewer hops, a
// narrow tree fewer messages out of a rank. Values; pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shardwire/types.h"

namespace shardwire::internal {

// Up to this many ranks, a message to each rank costs less than the hops of a tree, and a rank can be joined to all
// other ranks.
inline constexpr int kFewRanks = 16;

class RankTree {
 public:
  RankTree(int worldSize, int width);

  // Always 1 or more, so that a program over the tree has a stage.
  int numLevels() const { return static_cast<int>(widths_.size()) - 1; }
  // Ranks of a whole block below a rank of this level.
  std::int64_t widthOf(int level) const { return widths_[static_cast<std::size_t>(level)]; }
  // How many levels have the rank as a parent: 0 of most ranks, numLevels() of rank 0.
  int levelOf(Rank rank) const;
  // The first rank behind the block at `level` that begins with `rank`.
  Rank endOf(Rank rank, int level) const;
  // The rank that gathers the block of `rank` at `level` and the neighbouring blocks, or `rank` itself.
  Rank firstOf(Rank rank, int level) const { return rank - static_cast<Rank>(rank % widthOf(level + 1)); }
  // -1: rank 0 has none.
  Rank parentOf(Rank rank) const { return rank == 0 ? -1 : firstOf(rank, levelOf(rank)); }
  // The ranks whose blocks at `level` are gathered on `rank`, ascending. Empty when `rank` is no parent there.
  std::vector<Rank> childrenOf(Rank rank, int level) const;
  // The children on all levels; the children with the most ranks below them come first.
  std::vector<Rank> childrenOf(Rank rank) const;

 private:
  const Rank worldSize_;
  std::vector<std::int64_t> widths_;  // by level, from one rank to all
};

}  // namespace shardwire::internal
