// Blocks are powers of the width; the last of a level may be cut short by the number of ranks.
#include "ops/collectives/rank_tree.h"

#include <algorithm>

namespace shardwire::internal {

RankTree::RankTree(int worldSize, int width) : worldSize_(worldSize), widths_{1, width} {
  while (widths_.back() < worldSize) {
    widths_.push_back(widths_.back() * width);
  }
}

int RankTree::levelOf(Rank rank) const {
  int level = 0;
  while (level < numLevels() && rank % widthOf(level + 1) == 0) {
    ++level;
  }
  return level;
}

Rank RankTree::endOf(Rank rank, int level) const {
  return static_cast<Rank>(std::min(rank + widthOf(level), std::int64_t{worldSize_}));
}

std::vector<Rank> RankTree::childrenOf(Rank rank, int level) const {
  std::vector<Rank> children;
  if (level < levelOf(rank)) {
    for (std::int64_t child = rank + widthOf(level); child < endOf(rank, level + 1); child += widthOf(level)) {
      children.push_back(static_cast<Rank>(child));
    }
  }
  return children;
}

std::vector<Rank> RankTree::childrenOf(Rank rank) const {
  std::vector<Rank> all;
  for (int level = levelOf(rank) - 1; level >= 0; --level) {
    const std::vector<Rank> children = childrenOf(rank, level);
    all.insert(all.end(), children.begin(), children.end());
  }
  return all;
}

}  // namespace shardwire::internal
