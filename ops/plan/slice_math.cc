#include "ops/plan/slice_math.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwire::internal {

bool isEmpty(const Slice& slice) {
  return std::any_of(slice.shape.begin(), slice.shape.end(), [](std::int64_t extent) { return extent <= 0; });
}

bool doOverlap(const Slice& a, const Slice& b) {
  for (int d = 0; d < a.offset.size(); ++d) {
    if (std::max(a.offset[d], b.offset[d]) >= std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d])) {
      return false;
    }
  }
  return true;
}

std::string toString(const Slice& slice) {
  std::string text = "[";
  for (int d = 0; d < slice.offset.size(); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", slice.offset[d], slice.offset[d] + slice.shape[d]);
  }
  return text + "]";
}

}  // namespace shardwire::internal
