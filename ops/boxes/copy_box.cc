// A copy joins the dimensions that both boxes allow to be one, and takes the one with the smallest steps in the
// destination as the innermost. Then it is one of three cases. Both innermost steps are one element: rows of bytes,
// moved by the kernels of ops/reduce, past the caches when the move is large. The destination's innermost step is one
// element, and another dimension's is in the source: a transpose, in blocks that fit L1. Else: element by element. A
// short row that is 2, 4, 8 or 16 bytes long counts as one element.
#include "ops/boxes/copy_box.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/boxes/pair_loops.h"
#include "ops/reduce/isa_kernels.h"

namespace shardwire::internal {

namespace {

// Below this many bytes a copy is a plain memcpy per run: fetching ahead would only cost.
constexpr std::size_t kCopyAheadFromBytes = std::size_t{32} << 10;
// Rows shorter than this gain nothing from fetching ahead line by line.
constexpr std::size_t kAheadRowBytes = 256;
// Within a row this long the hardware fetches ahead as well, on some hosts better (cachedStore()).
constexpr std::size_t kLongRowBytes = 4096;

bool isWordSize(std::int64_t bytes) {
  return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
}

PairLoops copyLoopsOf(const StridedBox& dst, const StridedBox& src, const Dims& shape, std::size_t elemBytes) {
  PairLoops loops = pairLoopsOf(dst, elemBytes, src, elemBytes, shape);
  // A short run is one wider element.
  const std::int64_t runBytes = loops[0].extent * loops.dstElem;
  if (loops[1].extent > 1 && loops.isRunBoth() && isWordSize(runBytes)) {
    std::copy(loops.loops.begin() + 1, loops.loops.begin() + loops.size, loops.loops.begin());
    --loops.size;
    loops.dstElem = loops.srcElem = runBytes;
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
void copyStrided(std::byte* dst, const std::byte* src, const PairLoops& loops) {
  for (std::int64_t row = 0; row < loops[1].extent; ++row) {
    std::byte* to = dst + row * loops[1].dstStep;
    const std::byte* from = src + row * loops[1].srcStep;
    for (std::int64_t i = 0; i < loops[0].extent; ++i) {
      copyElement<T>(to, from);
      to += loops[0].dstStep;
      from += loops[0].srcStep;
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
void copyTransposed(std::byte* dst, const std::byte* src, const PairLoops& loops) {
  using Rows = std::integral_constant<std::int64_t, kBlockRows>;
  using Cols = std::integral_constant<std::int64_t, kBlockRowBytes / static_cast<std::int64_t>(sizeof(T))>;
  for (std::int64_t col = 0; col < loops[1].extent; col += Cols::value) {
    const std::int64_t numCols = std::min<std::int64_t>(Cols::value, loops[1].extent - col);
    for (std::int64_t row = 0; row < loops[0].extent; row += Rows::value) {
      const std::int64_t numRows = std::min<std::int64_t>(Rows::value, loops[0].extent - row);
      std::byte* to = dst + row * loops[0].dstStep + col * loops[1].dstStep;
      const std::byte* from = src + row * loops[0].srcStep + col * loops[1].srcStep;
      if (numRows == Rows::value && numCols == Cols::value) {
        copyTransposedBlock<T>(to, loops[1].dstStep, from, loops[0].srcStep, Rows{}, Cols{});
      } else {
        copyTransposedBlock<T>(to, loops[1].dstStep, from, loops[0].srcStep, numRows, numCols);
      }
    }
  }
}

using Leaf = void (*)(std::byte* dst, const std::byte* src, const PairLoops& loops);

Leaf leafOf(std::int64_t elemBytes, bool isTransposed) {
  switch (elemBytes) {
    case 1:
      return isTransposed ? copyTransposed<std::uint8_t> : copyStrided<std::uint8_t>;
    case 2:
      return isTransposed ? copyTransposed<std::uint16_t> : copyStrided<std::uint16_t>;
    case 4:
      return isTransposed ? copyTransposed<std::uint32_t> : copyStrided<std::uint32_t>;
    case 8:
      return isTransposed ? copyTransposed<std::uint64_t> : copyStrided<std::uint64_t>;
    default:  // 16
      return isTransposed ? copyTransposed<Word16> : copyStrided<Word16>;
  }
}

RowStore rowStoreOf(StoreHint hint, std::size_t totalBytes, std::size_t rowBytes) {
  const bool wantsStream = hint == StoreHint::kStream || (hint == StoreHint::kAuto && totalBytes >= kStreamFromBytes);
  if (wantsStream && rowBytes >= kStreamRowBytes) {
    return largeStore();
  }
  if (totalBytes < kCopyAheadFromBytes || rowBytes < kAheadRowBytes) {
    return RowStore::kPlain;
  }
  return rowBytes < kLongRowBytes || hint == StoreHint::kFar ? RowStore::kAhead : cachedStore();
}

void copyRuns(std::byte* dst, const std::byte* src, const PairLoops& loops, StoreHint hint, std::size_t totalBytes) {
  const std::size_t rowBytes = static_cast<std::size_t>(loops[0].extent * loops.dstElem);
  const RowStore store = rowStoreOf(hint, totalBytes, rowBytes);
  const KernelTable& table = kernels();
  loops.forEachOuter(dst, src, [&](std::byte* to, const std::byte* from) {
    table.copyRows(to, loops[1].dstStep, from, loops[1].srcStep, rowBytes, static_cast<std::size_t>(loops[1].extent),
                   store);
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
  PairLoops loops = copyLoopsOf(dst, src, shape, elemBytes);
  if (loops.isRunBoth()) {
    copyRuns(dst.bytes, src.bytes, loops, hint, totalBytes);
    return;
  }
  const bool isTransposed = loops[0].dstStep == loops.dstElem && loops.transpose();
  const Leaf leaf = leafOf(loops.dstElem, isTransposed);
  loops.forEachOuter(dst.bytes, src.bytes, [&](std::byte* to, const std::byte* from) { leaf(to, from, loops); });
}

void copyRun(std::byte* dst, const std::byte* src, std::size_t bytes, StoreHint hint) {
  // The box type has one kind of pointer; a source is only read.
  copyBox({dst, {1}}, {const_cast<std::byte*>(src), {1}}, {static_cast<std::int64_t>(bytes)}, 1, hint);
}

std::size_t packBox(std::byte* packed, const StridedBox& src, const Dims& shape, std::size_t elemBytes,
                    StoreHint hint) {
  copyBox(packedBox(packed, shape, elemBytes), src, shape, elemBytes, hint);
  return boxBytes(shape, elemBytes);
}

std::size_t unpackBox(const StridedBox& dst, const std::byte* packed, const Dims& shape, std::size_t elemBytes,
                      StoreHint hint) {
  copyBox(dst, packedBox(packed, shape, elemBytes), shape, elemBytes, hint);
  return boxBytes(shape, elemBytes);
}

}  // namespace shardwire::internal
