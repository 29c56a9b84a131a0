// Templates of strided_runs.h. Include strided_runs.h instead of this file.
#pragma once

#include "ops/boxes/strided_runs.h"

namespace shardwire::internal {

// The runs of a box: the trailing dimensions that lie without gaps form a run, the others are loops over runs.
struct RunLoops {
  std::size_t runBytes = 0;
  std::uint64_t numRuns = 0;
  // From the outermost; in bytes. Joined where one stride continues the other.
  Dims extents;
  Dims strides;
};
RunLoops runLoopsOf(const StridedBox& box, const Dims& shape, std::size_t elemBytes);

template <typename Visit>
void forEachRun(const StridedBox& box, const Dims& shape, std::size_t elemBytes, Visit&& visit) {
  const RunLoops loops = runLoopsOf(box, shape, elemBytes);
  if (loops.numRuns == 0) {
    return;
  }
  Dims index = Dims::filled(loops.extents.size(), 0);
  std::byte* run = box.bytes;
  while (true) {
    visit(run, loops.runBytes);
    int dim = loops.extents.size() - 1;
    for (; dim >= 0; --dim) {
      run += loops.strides[dim];
      if (++index[dim] < loops.extents[dim]) {
        break;
      }
      run -= loops.strides[dim] * loops.extents[dim];
      index[dim] = 0;
    }
    if (dim < 0) {
      return;
    }
  }
}

}  // namespace shardwire::internal
