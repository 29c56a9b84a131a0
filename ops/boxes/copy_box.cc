// A copy joins the dimensions that both boxes allow to be one, and takes the one with the smallest steps in the
// destination as the innermost. Then it is one of three cases. Both innermost steps are one element: rows of bytes,
// moved by the kernels of ops/reduce, past the caches when the move is large. The destination's innermost step is one
// element, and another dimension's is in the source: a transpose, in blocks that fit L1. Else: element by element. A
// short row that is 2, 4, 8 or 16 bytes long counts as one element.
#include "ops/boxes/copy_box.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/boxes/joint_loops.h"
#include "ops/reduce/isa_kernels.h"

namespace shardwire::internal {

namespace {

// Below this many bytes a copy is a plain memcpy per run: fetching ahead would only cost.
constexpr std::size_t kCopyAheadFromBytes = std::size_t{32} << 10;
// Rows shorter than this gain nothing from fetching ahead line by line.
constexpr std::size_t kAheadRowBytes = 256;

// The loops of a copy, innermost first, in bytes.
struct CopyLoops {
  std::array<std::int64_t, kMaxDims> extents;
  std::array<std::int64_t, kMaxDims> dstStrides;
  std::array<std::int64_t, kMaxDims> srcStrides;
  int size = 0;
  std::size_t elemBytes = 1;

  bool isRunBoth() const { return dstStrides[0] == elem() && srcStrides[0] == elem(); }
  std::int64_t elem() const { return static_cast<std::int64_t>(elemBytes); }
  void removeInnermost() {
    for (int i = 1; i < size; ++i) {
      const std::size_t to = static_cast<std::size_t>(i - 1);
      extents[to] = extents[to + 1];
      dstStrides[to] = dstStrides[to + 1];
      srcStrides[to] = srcStrides[to + 1];
    }
    --size;
  }
  void swap(int a, int b) {
    const std::size_t i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
    std::swap(extents[i], extents[j]);
    std::swap(dstStrides[i], dstStrides[j]);
    std::swap(srcStrides[i], srcStrides[j]);
  }
  // There are always two loops for the leaves below.
  void pad() {
    for (; size < 2; ++size) {
      const std::size_t i = static_cast<std::size_t>(size);
      extents[i] = 1;
      dstStrides[i] = elem();
      srcStrides[i] = elem();
    }
  }
};

bool isWordSize(std::int64_t bytes) {
  return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
}

CopyLoops copyLoopsOf(const StridedBox& dst, const StridedBox& src, const Dims& shape, std::size_t elemBytes) {
  const auto strideOf = [&](std::size_t tensor, int dim) {
    return tensor == 0 ? dst.byteStrides[dim] : src.byteStrides[dim];
  };
  const JointLoops joined = joinLoops(shape, 2, strideOf);
  CopyLoops loops;
  loops.elemBytes = elemBytes;
  loops.size = joined.size;
  for (std::size_t i = 0; i < static_cast<std::size_t>(joined.size); ++i) {
    loops.extents[i] = joined.loops[i].extent;
    loops.dstStrides[i] = dst.byteStrides[joined.loops[i].dim];
    loops.srcStrides[i] = src.byteStrides[joined.loops[i].dim];
  }
  loops.pad();
  // A short run is one wider element.
  if (loops.extents[1] > 1 && loops.isRunBoth() && isWordSize(loops.extents[0] * loops.elem())) {
    loops.elemBytes = static_cast<std::size_t>(loops.extents[0] * loops.elem());
    loops.removeInnermost();
    loops.pad();
  }
  return loops;
}

template <typename T>
void copyElement(std::byte* dst, const std::byte* src) {
  T element;
  std::memcpy(&element, src, sizeof(T));
  std::memcpy(dst, &element, sizeof(T));
}

template <typename T>
void copyStrided(std::byte* dst, const std::byte* src, const CopyLoops& loops) {
  for (std::int64_t row = 0; row < loops.extents[1]; ++row) {
    std::byte* to = dst + row * loops.dstStrides[1];
    const std::byte* from = src + row * loops.srcStrides[1];
    for (std::int64_t i = 0; i < loops.extents[0]; ++i) {
      copyElement<T>(to, from);
      to += loops.dstStrides[0];
      from += loops.srcStrides[0];
    }
  }
}

constexpr std::int64_t kBlockRows = 64;
constexpr std::int64_t kBlockRowBytes = 256;

// Moves one block of a transpose through a buffer in L1, so that every line of src is read once and every line of dst
// is written once, whatever the strides do to the sets of the caches. Rows are runs of src, columns are runs of dst.
template <typename T, typename NumRows, typename NumCols>
inline void copyTransposedBlock(std::byte* dst, std::int64_t dstStride, const std::byte* src, std::int64_t srcStride,
                                NumRows numRows, NumCols numCols) {
  T block[kBlockRows][kBlockRowBytes / static_cast<std::int64_t>(sizeof(T))];
  for (std::int64_t row = 0; row < numRows; ++row) {
    std::memcpy(block[row], src + row * srcStride, static_cast<std::size_t>(numCols) * sizeof(T));
  }
  for (std::int64_t col = 0; col < numCols; ++col) {
    T column[kBlockRows];
    for (std::int64_t row = 0; row < numRows; ++row) {
      column[row] = block[row][col];
    }
    std::memcpy(dst + col * dstStride, column, static_cast<std::size_t>(numRows) * sizeof(T));
  }
}

// A transpose: loop 0 is contiguous in dst, loop 1 in src.
template <typename T>
void copyTransposed(std::byte* dst, const std::byte* src, const CopyLoops& loops) {
  using Rows = std::integral_constant<std::int64_t, kBlockRows>;
  using Cols = std::integral_constant<std::int64_t, kBlockRowBytes / static_cast<std::int64_t>(sizeof(T))>;
  for (std::int64_t col = 0; col < loops.extents[1]; col += Cols::value) {
    const std::int64_t numCols = std::min<std::int64_t>(Cols::value, loops.extents[1] - col);
    for (std::int64_t row = 0; row < loops.extents[0]; row += Rows::value) {
      const std::int64_t numRows = std::min<std::int64_t>(Rows::value, loops.extents[0] - row);
      std::byte* to = dst + row * loops.dstStrides[0] + col * loops.dstStrides[1];
      const std::byte* from = src + row * loops.srcStrides[0] + col * loops.srcStrides[1];
      if (numRows == Rows::value && numCols == Cols::value) {
        copyTransposedBlock<T>(to, loops.dstStrides[1], from, loops.srcStrides[0], Rows{}, Cols{});
      } else {
        copyTransposedBlock<T>(to, loops.dstStrides[1], from, loops.srcStrides[0], numRows, numCols);
      }
    }
  }
}

// Elements of a size that no dtype has.
void copyOddElements(std::byte* dst, const std::byte* src, const CopyLoops& loops) {
  for (std::int64_t row = 0; row < loops.extents[1]; ++row) {
    for (std::int64_t i = 0; i < loops.extents[0]; ++i) {
      std::memcpy(dst + row * loops.dstStrides[1] + i * loops.dstStrides[0],
                  src + row * loops.srcStrides[1] + i * loops.srcStrides[0], loops.elemBytes);
    }
  }
}

using Leaf = void (*)(std::byte* dst, const std::byte* src, const CopyLoops& loops);

Leaf leafOf(std::size_t elemBytes, bool isTransposed) {
  switch (elemBytes) {
    case 1:
      return isTransposed ? copyTransposed<std::uint8_t> : copyStrided<std::uint8_t>;
    case 2:
      return isTransposed ? copyTransposed<std::uint16_t> : copyStrided<std::uint16_t>;
    case 4:
      return isTransposed ? copyTransposed<std::uint32_t> : copyStrided<std::uint32_t>;
    case 8:
      return isTransposed ? copyTransposed<std::uint64_t> : copyStrided<std::uint64_t>;
    case 16:
      return isTransposed ? copyTransposed<Word16> : copyStrided<Word16>;
    default:
      return copyOddElements;
  }
}

// Calls leaf(dst, src) for the two innermost loops at every index of the outer ones.
template <typename Inner>
void forEachOuter(std::byte* dst, const std::byte* src, const CopyLoops& loops, Inner&& inner) {
  std::array<std::int64_t, kMaxDims> index{};
  while (true) {
    inner(dst, src);
    int loop = 2;
    for (; loop < loops.size; ++loop) {
      const std::size_t i = static_cast<std::size_t>(loop);
      dst += loops.dstStrides[i];
      src += loops.srcStrides[i];
      if (++index[i] < loops.extents[i]) {
        break;
      }
      dst -= loops.dstStrides[i] * loops.extents[i];
      src -= loops.srcStrides[i] * loops.extents[i];
      index[i] = 0;
    }
    if (loop >= loops.size) {
      return;
    }
  }
}

RowStore rowStoreOf(StoreHint hint, std::size_t totalBytes, std::size_t rowBytes) {
  const bool wantsStream = hint == StoreHint::kStream || (hint == StoreHint::kAuto && totalBytes >= kStreamFromBytes);
  if (wantsStream && rowBytes >= kStreamRowBytes) {
    return largeStore();
  }
  return totalBytes >= kCopyAheadFromBytes && rowBytes >= kAheadRowBytes ? RowStore::kAhead : RowStore::kPlain;
}

void copyRuns(std::byte* dst, const std::byte* src, const CopyLoops& loops, StoreHint hint, std::size_t totalBytes) {
  const std::size_t rowBytes = static_cast<std::size_t>(loops.extents[0]) * loops.elemBytes;
  const RowStore store = rowStoreOf(hint, totalBytes, rowBytes);
  const KernelTable& table = kernels();
  forEachOuter(dst, src, loops, [&](std::byte* to, const std::byte* from) {
    table.copyRows(to, loops.dstStrides[1], from, loops.srcStrides[1], rowBytes,
                   static_cast<std::size_t>(loops.extents[1]), store);
  });
  if (store == RowStore::kStream || store == RowStore::kStreamPair) {
    table.fence();
  }
}

bool isSameBox(const StridedBox& a, const StridedBox& b, const Dims& shape) {
  bool isSame = a.bytes == b.bytes;
  for (int dim = 0; dim < shape.size() && isSame; ++dim) {
    isSame = shape[dim] == 1 || a.byteStrides[dim] == b.byteStrides[dim];
  }
  return isSame;
}

StridedBox packedBox(std::byte* bytes, const Dims& shape, std::size_t elemBytes) {
  return {bytes, packedByteStrides(shape, elemBytes)};
}

}  // namespace

void copyBox(const StridedBox& dst, const StridedBox& src, const Dims& shape, std::size_t elemBytes, StoreHint hint) {
  const std::size_t totalBytes = boxBytes(shape, elemBytes);
  if (totalBytes == 0 || isSameBox(dst, src, shape)) {
    return;
  }
  const std::int64_t elem = static_cast<std::int64_t>(elemBytes);
  if (shape.size() == 1 && dst.byteStrides[0] == elem && src.byteStrides[0] == elem &&
      totalBytes < kCopyAheadFromBytes && hint != StoreHint::kStream) {
    std::memcpy(dst.bytes, src.bytes, totalBytes);  // the loops below would take 30 ns to find this
    return;
  }
  CopyLoops loops = copyLoopsOf(dst, src, shape, elemBytes);
  if (loops.isRunBoth()) {
    copyRuns(dst.bytes, src.bytes, loops, hint, totalBytes);
    return;
  }
  bool isTransposed = false;
  for (int i = 1; i < loops.size && !isTransposed && loops.dstStrides[0] == loops.elem(); ++i) {
    if (loops.srcStrides[static_cast<std::size_t>(i)] == loops.elem() &&
        loops.extents[static_cast<std::size_t>(i)] > 1) {
      loops.swap(1, i);
      isTransposed = true;
    }
  }
  const Leaf leaf = leafOf(loops.elemBytes, isTransposed);
  forEachOuter(dst.bytes, src.bytes, loops, [&](std::byte* to, const std::byte* from) { leaf(to, from, loops); });
}

std::size_t packBox(std::byte* packed, const StridedBox& src, const Dims& shape, std::size_t elemBytes,
                    StoreHint hint) {
  copyBox(packedBox(packed, shape, elemBytes), src, shape, elemBytes, hint);
  return boxBytes(shape, elemBytes);
}

std::size_t unpackBox(const StridedBox& dst, const std::byte* packed, const Dims& shape, std::size_t elemBytes,
                      StoreHint hint) {
  // The box type has one kind of pointer; a source is only read.
  copyBox(dst, packedBox(const_cast<std::byte*>(packed), shape, elemBytes), shape, elemBytes, hint);
  return boxBytes(shape, elemBytes);
}

}  // namespace shardwire::internal
