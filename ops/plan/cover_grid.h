// How many of a set of boxes cover each place: the boxes' begins and ends cut every dimension into intervals, whose
// cross product is a grid of cells of constant cover. Answers "covered everywhere?" and "nowhere twice?" for a box in
// time that does not depend on the number of boxes. Immutable once built.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/plan/box_list.h"

namespace shardwire::internal {

class CoverGrid {
 public:
  struct Cover {
    bool hasGap = true;
    bool hasOverlap = true;
  };

  void build(const BoxList& boxes);
  // False when the boxes are too irregular for a grid of reasonable size: coverOf() then knows nothing.
  bool isUsable() const { return isUsable_; }
  // True when every element of [0, shape) is known to be covered.
  bool coversAll(const Dims& shape) const;
  bool hasOverlap() const { return !isUsable_ || hasOverlap_; }
  // Precondition: isUsable(); row not empty.
  Cover coverOf(const std::int64_t* row) const;
  // The dimension with the most cuts: the one to search along.
  int busiestDim() const { return busiestDim_; }

 private:
  bool countCells(const BoxList& boxes);

  std::vector<std::vector<std::int64_t>> cuts_;  // by dimension, ascending
  std::vector<std::size_t> strides_;             // of a cell, by dimension
  std::vector<std::uint8_t> counts_;             // by cell: 0, 1, or 2 for more
  bool isUsable_ = false;
  bool hasOverlap_ = false;
  bool hasGap_ = false;  // inside the hull of the cuts
  int busiestDim_ = 0;
};

}  // namespace shardwire::internal
