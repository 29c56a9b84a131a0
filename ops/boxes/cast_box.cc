// A cast joins the dimensions that both boxes allow to be one, like a copy. Where the innermost steps of both are one
// element, rows are cast by the kernels of ops/reduce, past the caches when the move is large. Else it goes block by
// block: a block of the source is gathered into L1, cast there, and scattered; squares where the two disagree about
// which dimension is contiguous.
#include "ops/boxes/cast_box.h"

#include <algorithm>
#include <array>

#include "ops/boxes/blocks.h"
#include "ops/boxes/pair_loops.h"
#include "ops/boxes/plain_floats.h"
#include "ops/reduce/isa_kernels.h"
#include "shardwire/status.h"

namespace shardwire::internal {

namespace {

// Below this many bytes fetching ahead would only cost.
constexpr std::size_t kCastAheadFromBytes = std::size_t{32} << 10;
constexpr std::size_t kCastAheadRowBytes = 256;
constexpr std::int64_t kBlockElems = 512;
constexpr std::int64_t kSquareCols = 16;

class BoxCaster {
 public:
  BoxCaster(const StridedBox& dst, DType dstDtype, const StridedBox& src, DType srcDtype, const Dims& shape)
      : table_(kernels()),
        cast_(table_.castLanes[static_cast<int>(srcDtype)][static_cast<int>(dstDtype)]),
        lanesPerElem_(srcDtype >= DType::kComplex32 && srcDtype <= DType::kComplex128 ? 2 : 1),
        dstElem_(static_cast<std::int64_t>(elementBytes(dstDtype))),
        srcElem_(static_cast<std::int64_t>(elementBytes(srcDtype))),
        dstBytes_(dst.bytes),
        srcBytes_(src.bytes),
        loops_(pairLoopsOf(dst, elementBytes(dstDtype), src, elementBytes(srcDtype), shape)),
        totalBytes_(boxBytes(shape, elementBytes(dstDtype))) {
    SW_CHECK(cast_ != nullptr);
  }

  void run(StoreHint hint) {
    if (loops_.isRunBoth()) {
      castRuns(hint);
    } else {
      castBlocks();
    }
  }

 private:
  void castRuns(StoreHint hint) const {
    const std::size_t rowBytes = static_cast<std::size_t>(loops_[0].extent * dstElem_);
    const bool wantsStream =
        hint == StoreHint::kStream || (hint == StoreHint::kAuto && totalBytes_ >= kStreamFromBytes);
    const RowStore store = wantsStream && rowBytes >= kStreamRowBytes                             ? largeStore()
                           : totalBytes_ >= kCastAheadFromBytes && rowBytes >= kCastAheadRowBytes ? RowStore::kAhead
                                                                                                  : RowStore::kPlain;
    loops_.forEachOuter(dstBytes_, srcBytes_, [&](std::byte* dst, const std::byte* src) {
      table_.castRows(cast_, dst, loops_[1].dstStep, laneBytes(dstElem_), src, loops_[1].srcStep, laneBytes(srcElem_),
                      lanesOf(loops_[0].extent), static_cast<std::size_t>(loops_[1].extent), store);
    });
    if (store == RowStore::kStream || store == RowStore::kStreamPair) {
      table_.fence();
    }
  }

  void castBlocks() {
    const bool isTransposed = loops_[0].srcStep != srcElem_ && loops_.transpose();
    Block whole;
    whole.cols = std::min(loops_[0].extent, isTransposed ? kSquareCols : kBlockElems);
    whole.rows = std::min(loops_[1].extent, kBlockElems / whole.cols);
    loops_.forEachOuter(dstBytes_, srcBytes_, [&](std::byte* dst, const std::byte* src) {
      for (std::int64_t row = 0; row < loops_[1].extent; row += whole.rows) {
        for (std::int64_t col = 0; col < loops_[0].extent; col += whole.cols) {
          const Block block{std::min(whole.cols, loops_[0].extent - col), std::min(whole.rows, loops_[1].extent - row)};
          castBlock(dst + row * loops_[1].dstStep + col * loops_[0].dstStep,
                    src + row * loops_[1].srcStep + col * loops_[0].srcStep, block);
        }
      }
    });
  }

  void castBlock(std::byte* dst, const std::byte* src, Block block) {
    const Steps dstSteps{loops_[0].dstStep, loops_[1].dstStep};
    const Steps srcSteps{loops_[0].srcStep, loops_[1].srcStep};
    if (!isFlat(srcSteps, block, srcElem_)) {
      copyBlock(gathered_, {srcElem_, block.cols * srcElem_}, src, srcSteps, block, srcElem_);
      src = gathered_;
    }
    const bool isDstFlat = isFlat(dstSteps, block, dstElem_);
    cast_(isDstFlat ? dst : stored_, src, lanesOf(block.cols * block.rows));
    if (!isDstFlat) {
      copyBlock(dst, dstSteps, stored_, {dstElem_, block.cols * dstElem_}, block, dstElem_);
    }
  }

  std::size_t lanesOf(std::int64_t elems) const { return static_cast<std::size_t>(elems * lanesPerElem_); }
  std::size_t laneBytes(std::int64_t elemBytes) const { return static_cast<std::size_t>(elemBytes / lanesPerElem_); }

  static constexpr std::size_t kBufferBytes = static_cast<std::size_t>(kBlockElems) * 16;

  const KernelTable& table_;
  const CastLanes cast_;
  const std::int64_t lanesPerElem_;
  const std::int64_t dstElem_;
  const std::int64_t srcElem_;
  std::byte* const dstBytes_;
  const std::byte* const srcBytes_;
  PairLoops loops_;
  const std::size_t totalBytes_;
  alignas(64) std::byte gathered_[kBufferBytes];
  alignas(64) std::byte stored_[kBufferBytes];
};

}  // namespace

void castBox(const StridedBox& dst, DType dstDtype, const StridedBox& src, DType srcDtype, const Dims& shape,
             StoreHint hint) {
  if (dstDtype == srcDtype) {
    copyBox(dst, src, shape, elementBytes(srcDtype), hint);
  } else if (numElements(shape) > 0) {
    const PlainFloats plain;
    BoxCaster(dst, dstDtype, src, srcDtype, shape).run(hint);
  }
}

std::size_t packCastBox(std::byte* packed, DType packedDtype, const StridedBox& src, DType srcDtype, const Dims& shape,
                        StoreHint hint) {
  castBox(packedBox(packed, shape, elementBytes(packedDtype)), packedDtype, src, srcDtype, shape, hint);
  return boxBytes(shape, elementBytes(packedDtype));
}

void unpackCastBox(const StridedBox& dst, DType dstDtype, const std::byte* packed, DType packedDtype, const Dims& shape,
                   StoreHint hint) {
  castBox(dst, dstDtype, packedBox(packed, shape, elementBytes(packedDtype)), packedDtype, shape, hint);
}

}  // namespace shardwire::internal
