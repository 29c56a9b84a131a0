// Boxes of strided tensors in memory: the addresses of their elements, their contiguous runs, and how a box is cut into
// segments. Pure functions over memory of the caller; no allocation; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shardwire/export.h"
#include "shardwire/tensor_view.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// A box in memory: the address of its first element and the strides, in BYTES. The shape is passed beside the box in
// each call.
struct StridedBox {
  std::byte* bytes = nullptr;
  Dims byteStrides;
};
// The box at `offset` inside `view`.
SHARDWIRE_EXPORT StridedBox boxOf(const TensorView& view, const Dims& offset);
// All of `view`.
inline StridedBox boxOf(const TensorView& view) {
  return boxOf(view, Dims::filled(view.shape.size(), 0));
}
// Bytes from the box's first element to one past its last; 0 when it is empty.
std::size_t extentBytes(const StridedBox& box, const Dims& shape, std::size_t elemBytes);

// Bytes of the box's elements.
inline std::size_t boxBytes(const Dims& shape, std::size_t elemBytes) {
  return static_cast<std::size_t>(numElements(shape)) * elemBytes;
}

// Bytes from the first element of a box to the one at `offset`.
std::int64_t byteOffset(const Dims& byteStrides, const Dims& offset);
// The strides of a packed box.
Dims packedByteStrides(const Dims& shape, std::size_t elemBytes);
// The box type has one kind of pointer; a source is only read.
inline StridedBox packedBox(const std::byte* bytes, const Dims& shape, std::size_t elemBytes) {
  return {const_cast<std::byte*>(bytes), packedByteStrides(shape, elemBytes)};
}

// Cuts a box, row-major, into segments of about equal size, at most maxBytes each (at least one element): both ends of
// an edge cut alike. Usage: for (SegmentCursor c(shape, elemBytes, maxBytes); !c.done(); c.next()) use(c.offset(),
// c.shape());
class SegmentCursor {
 public:
  SegmentCursor() = default;  // done
  // Precondition: every extent of shape > 0.
  SegmentCursor(const Dims& shape, std::size_t elemBytes, std::size_t maxBytes);
  bool done() const { return done_; }
  void next();
  const Dims& offset() const { return offset_; }  // relative to the box
  const Dims& shape() const { return segment_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Dims full_;
  Dims offset_;
  Dims segment_;
  std::size_t elemBytes_ = 1;
  std::size_t bytes_ = 0;
  int cutDim_ = 0;  // the dims right of cutDim_ are whole, the dims left of cutDim_ have extent 1
  std::int64_t cutExtent_ = 1;
  bool done_ = true;
};

// The runs of a box: the trailing dimensions that lie without gaps form a run, the others are loops over runs.
struct RunLoops {
  std::size_t runBytes = 0;
  std::uint64_t numRuns = 0;
  // From the outermost; in bytes. Joined where one stride continues the other.
  Dims extents;
  Dims strides;
};
RunLoops runLoopsOf(const StridedBox& box, const Dims& shape, std::size_t elemBytes);

// Visits the contiguous runs of a box, in row-major order: forEachRun(box, shape, elemBytes, [](std::byte* run,
// std::size_t bytes) {...}). Runs as long as the strides allow. Used for scatter/gather system calls.
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

// Number of runs that forEachRun visits; bytes of each run in runBytes.
std::uint64_t countRuns(const StridedBox& box, const Dims& shape, std::size_t elemBytes,
                        std::size_t* runBytes = nullptr);

}  // namespace shardwire::internal
