// Which views share memory: exact for strided views, columns of one buffer included. Pure; reads no tensor; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwire/export.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// [first, last) of the addresses that a view touches; an empty view gives first == last.
struct AddressRange {
  std::uintptr_t first = 0;
  std::uintptr_t last = 0;
  bool meets(const AddressRange& other) const { return first < other.last && other.first < last; }
};
SHARDWIRE_EXPORT AddressRange addressRange(const TensorView& view);

struct IndexedRange {
  AddressRange range;
  std::size_t index = 0;
};
// Calls visit(a, b) for each pair of ranges that meet, until visit() returns true. Empty ranges meet no other.
template <typename Visit>
void visitMeetings(std::vector<IndexedRange> ranges, Visit&& visit) {
  std::erase_if(ranges, [](const IndexedRange& each) { return each.range.first >= each.range.last; });
  std::sort(ranges.begin(), ranges.end(),
            [](const IndexedRange& a, const IndexedRange& b) { return a.range.first < b.range.first; });
  std::vector<IndexedRange> open;  // ranges that go on at the current address
  for (const IndexedRange& each : ranges) {
    std::erase_if(open, [&](const IndexedRange& other) { return other.range.last <= each.range.first; });
    for (const IndexedRange& other : open) {
      if (visit(other, each)) {
        return;
      }
    }
    open.push_back(each);
  }
}

// Whether there is one stride per dimension. The other functions of this file require true.
inline bool hasStrides(const TensorView& view) {
  return view.strides.size() == view.shape.size();
}
// For errors, where hasStrides() is false: "has shape [4] and 0 strides: ...", with the remedy.
std::string wrongStridesText(const TensorView& view);

// Whether each stride, and the distance to the farthest element, in bytes, fits in 64 bits. The other functions of this
// file require true.
bool isAddressable(const TensorView& view);

// Whether the elements lie in row-major order without gaps.
inline bool isContiguous(const TensorView& view) {
  std::int64_t expected = 1;
  for (int d = view.shape.size() - 1; d >= 0; --d) {
    if (view.shape[d] != 1 && view.strides[d] != expected) {
      return false;
    }
    expected *= view.shape[d];
  }
  return true;
}
// Whether any byte belongs to both views. The answer is true where the search takes too long.
SHARDWIRE_EXPORT bool shareMemory(const TensorView& a, const TensorView& b);
// Whether two elements of the view share memory, as in an expanded tensor. The answer is true where the search takes
// too long.
SHARDWIRE_EXPORT bool overlapsItself(const TensorView& view);
// Whether `a` and `b` are one tensor: equal elements at equal places. The shapes of contiguous views may differ.
SHARDWIRE_EXPORT bool areOneTensor(const TensorView& a, const TensorView& b);
// The memory of several views: from the first byte to the last, empty views left out.
struct ViewsExtent {
  AddressRange whole;
  bool ascend = true;  // no view begins before the end of the view before, as pieces of one tensor: none share memory
};
ViewsExtent extentOf(std::span<const TensorView> views);
// The first two views, by index, that share memory.
std::optional<std::pair<std::size_t, std::size_t>> findShared(std::span<const TensorView> views);

}  // namespace shardwire::internal
