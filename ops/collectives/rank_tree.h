// The tree by which many ranks bring something together on rank 0 and get something from there. Of each `width` neighbours the first stands
// for all, of each `width` such ranks again the first, and so on up to rank 0. By eights:
//
//   level 0   8 <- 9 ... 15          level 1   0 <- 8, 16, ... 56          level 2   0 <- 64, 128, ...
//
// So what is below a rank is a block of neighbours, in rank order: [rank, rank + widthOf(level)). Neighbours, because ranks of one host
// mostly are: then little crosses between hosts. n ranks need n - 1 links in all, most of them one each, and rank 0 width - 1 for each of
// its levels. A wide tree has fewer hops, a narrow one fewer messages out of a rank. Values; pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shardwire/types.h"

namespace shardwire::internal {

// Up to so many ranks a message to each of them costs less than the hops of a tree, and a rank can be joined to all.
inline constexpr int kFewRanks = 16;

class RankTree {
 public:
  RankTree(int worldSize, int width);

  // At least one, so that a program over the tree has a stage.
  int numLevels() const { return static_cast<int>(widths_.size()) - 1; }
  // Ranks of a whole block below a rank of this level.
  std::int64_t widthOf(int level) const { return widths_[static_cast<std::size_t>(level)]; }
  // How many levels have the rank as a parent: 0 of most ranks, numLevels() of rank 0.
  int levelOf(Rank rank) const;
  // Of the block at `level` that begins with the rank: the first rank behind it.
  Rank endOf(Rank rank, int level) const;
  // Who takes the rank's block at `level` together with those beside it: the rank itself if it is the first of them.
  Rank firstOf(Rank rank, int level) const { return rank - static_cast<Rank>(rank % widthOf(level + 1)); }
  // -1: rank 0 has none.
  Rank parentOf(Rank rank) const { return rank == 0 ? -1 : firstOf(rank, levelOf(rank)); }
  // Those whose blocks at `level` come together on the rank, ascending. None when it is no parent there.
  std::vector<Rank> childrenOf(Rank rank, int level) const;
  // On all levels, those with the most ranks below them first.
  std::vector<Rank> childrenOf(Rank rank) const;

 private:
  const Rank worldSize_;
  std::vector<std::int64_t> widths_;  // by level, from one rank to all
};

}  // namespace shardwire::internal
