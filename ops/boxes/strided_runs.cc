// Walks over a box in row-major order. The trailing dimensions without gaps form a run. The other dimensions become
// loops over runs; two loops are joined where one continues the other. A segment is a box of whole rows: the longest
// suffix of dimensions within the limit is kept whole, the next dimension to the left is cut evenly, and the dimensions
// further left have extent 1.
#include "ops/boxes/strided_runs.h"

#include <algorithm>

namespace shardwire::internal {

std::int64_t byteOffset(const Dims& byteStrides, const Dims& offset) {
  std::int64_t bytes = 0;
  for (int d = 0; d < offset.size(); ++d) {
    bytes += byteStrides[d] * offset[d];
  }
  return bytes;
}

Dims packedByteStrides(const Dims& shape, std::size_t elemBytes) {
  Dims strides = contiguousStrides(shape);
  for (auto& stride : strides) {
    stride *= static_cast<std::int64_t>(elemBytes);
  }
  return strides;
}

StridedBox boxOf(const TensorView& view, const Dims& offset) {
  const std::int64_t elem = static_cast<std::int64_t>(elementBytes(view.dtype));
  StridedBox box{view.bytes, view.strides};
  for (int dim = 0; dim < view.strides.size(); ++dim) {
    box.byteStrides[dim] *= elem;
    box.bytes += offset[dim] * box.byteStrides[dim];
  }
  return box;
}

std::size_t extentBytes(const StridedBox& box, const Dims& shape, std::size_t elemBytes) {
  std::int64_t last = 0;
  for (int dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] == 0) {
      return 0;
    }
    last += (shape[dim] - 1) * box.byteStrides[dim];
  }
  return static_cast<std::size_t>(last) + elemBytes;
}

SegmentCursor::SegmentCursor(const Dims& shape, std::size_t elemBytes, std::size_t maxBytes)
    : full_(shape), offset_(Dims::filled(shape.size(), 0)), segment_(shape), elemBytes_(elemBytes), done_(false) {
  // Finds the longest suffix of whole dimensions within maxBytes. The dimension left of the suffix is cut.
  std::size_t suffixBytes = elemBytes;
  cutDim_ = shape.size();
  while (cutDim_ > 0 && suffixBytes * static_cast<std::size_t>(shape[cutDim_ - 1]) <= maxBytes) {
    suffixBytes *= static_cast<std::size_t>(shape[--cutDim_]);
  }
  if (cutDim_ > 0) {
    --cutDim_;
    const std::int64_t extent = shape[cutDim_];
    const std::int64_t most = std::max<std::int64_t>(1, static_cast<std::int64_t>(maxBytes / suffixBytes));
    const std::int64_t numCuts = (extent + most - 1) / most;
    cutExtent_ = (extent + numCuts - 1) / numCuts;
    segment_[cutDim_] = cutExtent_;
    std::fill_n(segment_.begin(), cutDim_, 1);
  } else {
    cutExtent_ = shape.empty() ? 1 : shape[0];
  }
  bytes_ = boxBytes(segment_, elemBytes);
}

void SegmentCursor::next() {
  if (full_.empty()) {
    done_ = true;
    return;
  }
  offset_[cutDim_] += segment_[cutDim_];
  int dim = cutDim_;
  while (offset_[dim] == full_[dim]) {
    offset_[dim] = 0;
    if (--dim < 0) {
      done_ = true;
      return;
    }
    ++offset_[dim];
  }
  segment_[cutDim_] = std::min(cutExtent_, full_[cutDim_] - offset_[cutDim_]);
  bytes_ = boxBytes(segment_, elemBytes_);
}

RunLoops runLoopsOf(const StridedBox& box, const Dims& shape, std::size_t elemBytes) {
  RunLoops loops;
  if (numElements(shape) == 0) {
    return loops;
  }
  loops.runBytes = elemBytes;
  loops.numRuns = 1;
  // From the innermost; turned around at the end.
  Dims extents, strides;
  for (int dim = shape.size() - 1; dim >= 0; --dim) {
    if (shape[dim] == 1) {
      continue;
    }
    const std::int64_t stride = box.byteStrides[dim];
    if (extents.empty() && stride == static_cast<std::int64_t>(loops.runBytes)) {
      loops.runBytes *= static_cast<std::size_t>(shape[dim]);
      continue;
    }
    loops.numRuns *= static_cast<std::uint64_t>(shape[dim]);
    const int last = extents.size() - 1;
    if (last >= 0 && stride == extents[last] * strides[last]) {
      extents[last] *= shape[dim];
      continue;
    }
    extents.push_back(shape[dim]);
    strides.push_back(stride);
  }
  for (int i = extents.size() - 1; i >= 0; --i) {
    loops.extents.push_back(extents[i]);
    loops.strides.push_back(strides[i]);
  }
  return loops;
}

std::uint64_t countRuns(const StridedBox& box, const Dims& shape, std::size_t elemBytes, std::size_t* runBytes) {
  const RunLoops loops = runLoopsOf(box, shape, elemBytes);
  if (runBytes != nullptr) {
    *runBytes = loops.runBytes;
  }
  return loops.numRuns;
}

}  // namespace shardwire::internal
