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

// Calls visit(a, b), a < b, for each pair of views whose addresses meet, until visit() returns true. `viewOf(i)` is one
// of `count` views.
template <typename ViewOf, typename Visit>
void visitMeetings(std::size_t count, const ViewOf& viewOf, Visit&& visit) {
  struct Indexed {
    AddressRange range;
    std::size_t index;
  };
  std::vector<Indexed> ranges;
  ranges.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (const AddressRange range = addressRange(viewOf(i)); range.first < range.last) {
      ranges.push_back({range, i});
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Indexed& a, const Indexed& b) { return a.range.first < b.range.first; });
  std::vector<Indexed> open;  // ranges that go on at the current address
  for (const Indexed& each : ranges) {
    std::erase_if(open, [&](const Indexed& other) { return other.range.last <= each.range.first; });
    for (const Indexed& other : open) {
      if (visit(std::min(other.index, each.index), std::max(other.index, each.index))) {
        return;
      }
    }
    open.push_back(each);
  }
}
// Calls visit(input, output), by index, for each input and each output whose addresses meet, until visit() returns
// true.
template <typename Visit>
void visitMeetings(std::span<const TensorView> inputs, std::span<const TensorView> outputs, Visit&& visit) {
  const std::size_t numInputs = inputs.size();
  const auto viewOf = [&](std::size_t i) -> const TensorView& {
    return i < numInputs ? inputs[i] : outputs[i - numInputs];
  };
  visitMeetings(numInputs + outputs.size(), viewOf, [&](std::size_t a, std::size_t b) {
    return a < numInputs && b >= numInputs && visit(a, b - numInputs);
  });
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
