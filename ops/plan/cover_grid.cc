// Two passes over the boxes. The first pass gathers the begins and ends of each dimension, which cut the dimension into
// intervals. The second pass raises the count of every cell covered by a box. Counts stop at 2, which means "more than
// one". No grid is made where a grid would take much more memory or time than the list of boxes; callers then search
// the boxes themselves.
#include "ops/plan/cover_grid.h"

namespace shardwire::internal {

namespace {

// A grid is worth the memory only while the grid is not much larger than the set of boxes.
constexpr std::size_t kCellsPerBox = 16;
constexpr std::size_t kMinCellLimit = std::size_t{1} << 14;
constexpr std::size_t kMarksPerBox = 64;
constexpr std::size_t kMinMarkLimit = std::size_t{1} << 16;

// Ascending distinct values. Regular layouts repeat few values very often, so a hash set comes before the sort.
class DistinctValues {
 public:
  DistinctValues() : slots_(64), used_(64, 0) {}

  void insert(std::int64_t value) {
    if (place(value)) {
      values_.push_back(value);
      if (values_.size() * 2 > slots_.size()) {
        grow();
      }
    }
  }
  std::vector<std::int64_t> takeSorted() {
    std::sort(values_.begin(), values_.end());
    return std::move(values_);
  }

 private:
  bool place(std::int64_t value) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = static_cast<std::size_t>((static_cast<std::uint64_t>(value) * 0x9e3779b97f4a7c15ULL) >> 20) & mask;
    while (used_[at] != 0) {
      if (slots_[at] == value) {
        return false;
      }
      at = (at + 1) & mask;
    }
    used_[at] = 1;
    slots_[at] = value;
    return true;
  }
  void grow() {
    slots_.assign(slots_.size() * 4, 0);
    used_.assign(slots_.size(), 0);
    for (const std::int64_t value : values_) {
      place(value);
    }
  }

  std::vector<std::int64_t> slots_;
  std::vector<std::uint8_t> used_;
  std::vector<std::int64_t> values_;
};

std::size_t indexOfCut(const std::vector<std::int64_t>& cuts, std::int64_t value) {
  return static_cast<std::size_t>(std::lower_bound(cuts.begin(), cuts.end(), value) - cuts.begin());
}

// Visits the innermost rows of a box of cells: visit(first cell, number of cells) returns false to stop.
template <typename Visit>
void forEachCellRow(int numDims, const std::size_t* begin, const std::size_t* end,
                    const std::vector<std::size_t>& strides, Visit visit) {
  if (numDims == 0) {
    visit(std::size_t{0}, std::size_t{1});
    return;
  }
  const int last = numDims - 1;
  std::array<std::size_t, kMaxDims> at;
  std::copy_n(begin, numDims, at.begin());
  std::size_t cell = 0;
  for (int d = 0; d < numDims; ++d) {
    cell += begin[d] * strides[static_cast<std::size_t>(d)];
  }
  while (visit(cell, end[last] - begin[last])) {
    int d = last - 1;
    for (; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      cell += strides[i];
      if (++at[i] < end[d]) {
        break;
      }
      cell -= (end[d] - begin[d]) * strides[i];
      at[i] = begin[d];
    }
    if (d < 0) {
      return;
    }
  }
}

}  // namespace

void CoverGrid::build(const BoxList& boxes) {
  const int numDims = boxes.numDims();
  cuts_.clear();
  strides_.assign(static_cast<std::size_t>(numDims), 1);
  busiestDim_ = 0;
  for (int d = 0; d < numDims; ++d) {
    DistinctValues values;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      values.insert(boxes[i][d]);
      values.insert(boxes[i][numDims + d]);
    }
    cuts_.push_back(values.takeSorted());
    if (cuts_.back().size() > cuts_[static_cast<std::size_t>(busiestDim_)].size()) {
      busiestDim_ = d;
    }
  }
  isUsable_ = !boxes.empty() && countCells(boxes);
}

bool CoverGrid::countCells(const BoxList& boxes) {
  const int numDims = boxes.numDims();
  std::size_t numCells = 1;
  for (int d = numDims - 1; d >= 0; --d) {
    strides_[static_cast<std::size_t>(d)] = numCells;
    numCells *= cuts_[static_cast<std::size_t>(d)].size() - 1;
    if (numCells > std::max(kMinCellLimit, kCellsPerBox * boxes.size())) {
      return false;
    }
  }
  counts_.assign(numCells, 0);
  std::size_t marksLeft = std::max(kMinMarkLimit, kMarksPerBox * boxes.size());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    std::array<std::size_t, kMaxDims> begin;
    std::array<std::size_t, kMaxDims> end;
    std::size_t marks = 1;
    for (int d = 0; d < numDims; ++d) {
      const std::vector<std::int64_t>& cuts = cuts_[static_cast<std::size_t>(d)];
      const auto at = static_cast<std::size_t>(d);
      begin[at] = indexOfCut(cuts, boxes[i][d]);
      // Most boxes of a regular layout are one cell long.
      end[at] = cuts[begin[at] + 1] == boxes[i][numDims + d] ? begin[at] + 1 : indexOfCut(cuts, boxes[i][numDims + d]);
      marks *= end[at] - begin[at];
    }
    if (marks > marksLeft) {
      return false;
    }
    marksLeft -= marks;
    forEachCellRow(numDims, begin.data(), end.data(), strides_, [&](std::size_t first, std::size_t count) {
      for (std::size_t cell = first; cell < first + count; ++cell) {
        counts_[cell] = static_cast<std::uint8_t>(std::min(counts_[cell] + 1, 2));
      }
      return true;
    });
  }
  hasOverlap_ = std::find(counts_.begin(), counts_.end(), 2) != counts_.end();
  hasGap_ = std::find(counts_.begin(), counts_.end(), 0) != counts_.end();
  return true;
}

bool CoverGrid::coversAll(const Dims& shape) const {
  if (!isUsable_ || hasGap_) {
    return false;
  }
  for (int d = 0; d < shape.size(); ++d) {
    const std::vector<std::int64_t>& cuts = cuts_[static_cast<std::size_t>(d)];
    if (cuts.front() > 0 || cuts.back() < shape[d]) {
      return false;
    }
  }
  return true;
}

CoverGrid::Cover CoverGrid::coverOf(const std::int64_t* row) const {
  const int numDims = static_cast<int>(cuts_.size());
  Cover cover{false, false};
  std::array<std::size_t, kMaxDims> begin;
  std::array<std::size_t, kMaxDims> end;
  for (int d = 0; d < numDims; ++d) {
    const std::vector<std::int64_t>& cuts = cuts_[static_cast<std::size_t>(d)];
    const auto at = static_cast<std::size_t>(d);
    if (row[numDims + d] <= cuts.front() || row[d] >= cuts.back()) {
      return {true, false};
    }
    cover.hasGap |= row[d] < cuts.front() || row[numDims + d] > cuts.back();
    // The cell with the first element, and the first cell after the last element.
    const std::int64_t first = std::max(row[d], cuts.front());
    begin[at] = static_cast<std::size_t>(std::upper_bound(cuts.begin(), cuts.end(), first) - cuts.begin()) - 1;
    end[at] = indexOfCut(cuts, std::min(row[numDims + d], cuts.back()));
  }
  if (!hasGap_ && !hasOverlap_) {
    return cover;
  }
  forEachCellRow(numDims, begin.data(), end.data(), strides_, [&](std::size_t first, std::size_t count) {
    const auto from = counts_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto to = from + static_cast<std::ptrdiff_t>(count);
    cover.hasGap = cover.hasGap || (hasGap_ && std::find(from, to, 0) != to);
    cover.hasOverlap = cover.hasOverlap || (hasOverlap_ && std::find(from, to, 2) != to);
    return !(cover.hasGap && cover.hasOverlap);
  });
  return cover;
}

}  // namespace shardwire::internal
