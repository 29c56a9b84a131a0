// Boxes of one number of dimensions, packed: a row holds every begin, then every end. The planner's hot loops walk rows
// instead of Slices, because a Slice takes 270 bytes whatever its number of dimensions. Not thread safe; a row pointer
// is valid until the list grows.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "shardwire/op_spec.h"

namespace shardwire::internal {

// begin[0], ..., begin[n - 1], end[0], ..., end[n - 1]
using BoxRow = std::array<std::int64_t, 2 * kMaxDims>;

inline bool isEmptyRow(int numDims, const std::int64_t* row) {
  for (int d = 0; d < numDims; ++d) {
    if (row[d] >= row[numDims + d]) {
      return true;
    }
  }
  return false;
}

inline void rowOf(const Slice& slice, std::int64_t* row) {
  const int numDims = slice.offset.size();
  for (int d = 0; d < numDims; ++d) {
    row[d] = slice.offset[d];
    row[numDims + d] = slice.offset[d] + slice.shape[d];
  }
}

inline Slice sliceOf(int numDims, const std::int64_t* row) {
  Slice slice{Dims::filled(numDims, 0), Dims::filled(numDims, 0)};
  for (int d = 0; d < numDims; ++d) {
    slice.offset[d] = row[d];
    slice.shape[d] = row[numDims + d] - row[d];
  }
  return slice;
}

inline bool rowsOverlap(int numDims, const std::int64_t* a, const std::int64_t* b) {
  for (int d = 0; d < numDims; ++d) {
    if (a[d] >= b[numDims + d] || b[d] >= a[numDims + d]) {
      return false;
    }
  }
  return true;
}

inline bool rowContains(int numDims, const std::int64_t* outer, const std::int64_t* inner) {
  for (int d = 0; d < numDims; ++d) {
    if (inner[d] < outer[d] || inner[numDims + d] > outer[numDims + d]) {
      return false;
    }
  }
  return true;
}

// Precondition: the rows overlap.
inline void intersectRows(int numDims, const std::int64_t* a, const std::int64_t* b, std::int64_t* out) {
  for (int d = 0; d < numDims; ++d) {
    out[d] = std::max(a[d], b[d]);
    out[numDims + d] = std::min(a[numDims + d], b[numDims + d]);
  }
}

inline std::uint64_t rowElements(int numDims, const std::int64_t* row) {
  std::uint64_t product = 1;
  for (int d = 0; d < numDims; ++d) {
    product *= static_cast<std::uint64_t>(row[numDims + d] - row[d]);
  }
  return product;
}

class BoxList {
 public:
  void reset(int numDims) {
    numDims_ = numDims;
    size_ = 0;
    coords_.clear();
  }
  int numDims() const { return numDims_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const std::int64_t* operator[](std::size_t i) const { return coords_.data() + i * stride(); }
  std::int64_t* operator[](std::size_t i) { return coords_.data() + i * stride(); }
  // `row` may be a row of this list.
  void add(const std::int64_t* row) {
    BoxRow copy;
    std::copy_n(row, stride(), copy.begin());
    coords_.insert(coords_.end(), copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(stride()));
    ++size_;
  }

 private:
  std::size_t stride() const { return 2 * static_cast<std::size_t>(numDims_); }

  int numDims_ = 0;
  std::size_t size_ = 0;
  std::vector<std::int64_t> coords_;
};

// Calls visit(row) for at most 2 * numDims disjoint boxes whose union is `from` without `hole`. Precondition: from
// contains hole.
template <typename Visit>
void subtractRows(int numDims, const std::int64_t* from, const std::int64_t* hole, Visit visit) {
  BoxRow rest;  // equals the hole in all dimensions already done
  std::copy_n(from, 2 * numDims, rest.begin());
  for (int d = 0; d < numDims; ++d) {
    const auto begin = static_cast<std::size_t>(d);
    const auto end = static_cast<std::size_t>(numDims + d);
    if (rest[begin] < hole[begin]) {
      BoxRow before = rest;
      before[end] = hole[begin];
      visit(before.data());
    }
    if (hole[end] < rest[end]) {
      BoxRow after = rest;
      after[begin] = hole[end];
      visit(after.data());
    }
    rest[begin] = hole[begin];
    rest[end] = hole[end];
  }
}

// Cuts `hole` out of the disjoint boxes of `rest`: `kept` has the others.
inline void cutOut(const BoxList& rest, const std::int64_t* hole, BoxList& kept) {
  const int numDims = rest.numDims();
  kept.reset(numDims);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (!rowsOverlap(numDims, rest[i], hole)) {
      kept.add(rest[i]);
      continue;
    }
    BoxRow shared;
    intersectRows(numDims, rest[i], hole, shared.data());
    subtractRows(numDims, rest[i], shared.data(), [&kept](const std::int64_t* row) { kept.add(row); });
  }
}

// Finds the boxes of a list that overlap a box. The boxes are sorted by their begin along one dimension. A box refers
// to the nearest earlier box with a larger end. A query passes over the boxes between these two if they end too early.
class BoxSearch {
 public:
  // `boxes` must outlive the search; `members` are rows of `boxes`. Precondition: dim < numDims, or numDims == 0.
  void build(const BoxList& boxes, const std::vector<std::uint32_t>& members, int dim) {
    boxes_ = &boxes;
    dim_ = boxes.numDims() == 0 ? -1 : dim;
    entries_.clear();
    entries_.reserve(members.size());
    for (const std::uint32_t member : members) {
      const std::int64_t* const row = boxes[member];
      entries_.push_back({dim_ < 0 ? 0 : row[dim_], dim_ < 0 ? 1 : row[boxes.numDims() + dim_], member, kNone});
    }
    const auto byBegin = [](const Entry& a, const Entry& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.member < b.member;
    };
    if (!std::is_sorted(entries_.begin(), entries_.end(), byBegin)) {
      std::sort(entries_.begin(), entries_.end(), byBegin);
    }
    for (std::uint32_t i = 1; i < entries_.size(); ++i) {
      std::uint32_t longer = i - 1;
      while (longer != kNone && entries_[longer].end <= entries_[i].end) {
        longer = entries_[longer].longer;
      }
      entries_[i].longer = longer;
    }
  }
  bool empty() const { return entries_.empty(); }
  // Calls visit(member) for every member that overlaps `row`, in no particular order.
  template <typename Visit>
  void forEachOverlap(const std::int64_t* row, Visit visit) const {
    if (entries_.empty()) {
      return;
    }
    const int numDims = boxes_->numDims();
    const std::int64_t begin = dim_ < 0 ? 0 : row[dim_];
    const std::int64_t end = dim_ < 0 ? 1 : row[numDims + dim_];
    const auto after =
        std::partition_point(entries_.begin(), entries_.end(), [end](const Entry& entry) { return entry.begin < end; });
    for (auto at = static_cast<std::uint32_t>(after - entries_.begin()) - 1; at != kNone;) {
      const Entry& entry = entries_[at];
      if (entry.end <= begin) {
        at = entry.longer;
        continue;
      }
      if (rowsOverlap(numDims, row, (*boxes_)[entry.member])) {
        visit(entry.member);
      }
      --at;
    }
  }

 private:
  static constexpr std::uint32_t kNone = 0U - 1;  // the place before the first
  struct Entry {
    std::int64_t begin;
    std::int64_t end;
    std::uint32_t member;
    std::uint32_t longer;  // place of the nearest earlier entry with a larger end, or kNone
  };
  const BoxList* boxes_ = nullptr;
  int dim_ = -1;
  std::vector<Entry> entries_;
};

}  // namespace shardwire::internal
