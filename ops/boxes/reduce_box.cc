// Walks the box in blocks that fit L1. Each block of every source is combined into an accumulator in source order, then
// rounded and written once. So memory is read and written once, whatever the number of sources.
#include "ops/boxes/reduce_box.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "ops/boxes/blocks.h"
#include "ops/boxes/cast_box.h"
#include "ops/boxes/joint_loops.h"
#include "ops/boxes/plain_floats.h"
#include "ops/reduce/isa_kernels.h"
#include "shardwire/status.h"

namespace shardwire::internal {

namespace {

constexpr std::size_t kBlockBytes = 2048;  // of accumulators
constexpr std::size_t kReduceAheadFromBytes = std::size_t{64} << 10;
constexpr std::int64_t kAheadBytes = 8192;
constexpr std::int64_t kFusedRowBytes = 128;
constexpr std::size_t kLineBytes = 64;

// Sources as boxes, or as plain pointers to runs.
class SourceList {
 public:
  explicit SourceList(std::span<const StridedBox> boxes) : boxes_(boxes), size_(boxes.size()) {}
  SourceList(std::span<const std::byte* const> runs, std::int64_t elemBytes)
      : runs_(runs), size_(runs.size()), elemBytes_(elemBytes) {}
  std::size_t size() const { return size_; }
  const std::byte* bytes(std::size_t i) const { return boxes_.empty() ? runs_[i] : boxes_[i].bytes; }
  std::int64_t stride(std::size_t i, int dim) const { return boxes_.empty() ? elemBytes_ : boxes_[i].byteStrides[dim]; }

 private:
  std::span<const StridedBox> boxes_;
  std::span<const std::byte* const> runs_;
  std::size_t size_;
  std::int64_t elemBytes_ = 0;
};

bool canReduceRuns(const ReduceKernel& kernel, std::size_t numSources) {
  return kernel.reduceRuns != nullptr && numSources <= kMostRuns &&
         (!kernel.runsDivideByPowersOfTwo || std::has_single_bit(numSources));
}

class BoxReducer {
 public:
  BoxReducer(const StridedBox& dst, DType dstDtype, SourceList sources, const Dims& shape, DType dtype, ReduceOp op,
             StoreHint hint)
      : table_(kernels()),
        kernel_(table_.reduce[static_cast<int>(dtype)][static_cast<int>(op)]),
        dst_(dst),
        sources_(sources),
        elemBytes_(static_cast<std::int64_t>(elementBytes(dtype))),
        dstElemBytes_(static_cast<std::int64_t>(elementBytes(dstDtype))),
        divisor_(op == ReduceOp::kMean && dtype != DType::kBool ? static_cast<std::int64_t>(sources.size()) : 0) {
    SW_CHECK(kernel_.encode != nullptr);
    if (dstDtype != dtype) {
      chooseCast(dtype, dstDtype, op);
    }
    loops_ = joinLoops(shape, sources.size() + 1, [&](std::size_t tensor, int dim) {
      return tensor == 0 ? dst.byteStrides[dim] : sources.stride(tensor - 1, dim);
    });
    for (; loops_.size < 2; ++loops_.size) {
      loops_.loops[static_cast<std::size_t>(loops_.size)] = {1, -1};
    }
    chooseBlock();
    chooseStores(static_cast<std::size_t>(numElements(shape) * dstElemBytes_), hint);
  }

  void run() {
    std::array<std::int64_t, kMaxDims> index{};
    const std::size_t numLoops = static_cast<std::size_t>(loops_.size);
    while (true) {
      index_ = index.data();
      for (index[1] = 0; index[1] < extent(1); index[1] += block_.rows) {
        for (index[0] = 0; index[0] < extent(0); index[0] += block_.cols) {
          reduceBlock({std::min(block_.cols, extent(0) - index[0]), std::min(block_.rows, extent(1) - index[1])});
        }
      }
      std::size_t loop = 2;
      for (; loop < numLoops && ++index[loop] == extent(static_cast<int>(loop)); ++loop) {
        index[loop] = 0;
      }
      if (loop >= numLoops) {
        break;
      }
    }
    if (isStreamed_) {
      table_.fence();
    }
  }

 private:
  std::int64_t extent(int loop) const { return loops_.loops[static_cast<std::size_t>(loop)].extent; }

  // A loop that does not exist has one step of one element.
  int dimOf(int loop) const { return loops_.loops[static_cast<std::size_t>(loop)].dim; }
  std::int64_t dstStep(int loop) const { return dimOf(loop) < 0 ? dstElemBytes_ : dst_.byteStrides[dimOf(loop)]; }
  std::int64_t sourceStep(std::size_t source, int loop) const {
    return dimOf(loop) < 0 ? elemBytes_ : sources_.stride(source, dimOf(loop));
  }
  Steps stepsOf(std::size_t source) const { return {sourceStep(source, 0), sourceStep(source, 1)}; }

  // The accumulator is first stored as a value of the accumulator's type and then cast, so only one rounding happens.
  void chooseCast(DType dtype, DType dstDtype, ReduceOp op) {
    const bool isWiderAcc = kernel_.decode != nullptr;
    const DType accDtype = !isWiderAcc ? dtype : (kernel_.lanesPerElem == 2 ? DType::kComplex64 : DType::kFloat32);
    finish_ = table_.reduce[static_cast<int>(accDtype)][static_cast<int>(op)].encode;
    cast_ = table_.castLanes[static_cast<int>(accDtype)][static_cast<int>(dstDtype)];
    SW_CHECK(finish_ != nullptr && (cast_ != nullptr || accDtype == dstDtype));
  }

  void chooseBlock() {
    bool areAllRuns = dstStep(0) == dstElemBytes_ && finish_ == nullptr;
    bool isAnyTransposed = false;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const Steps steps = stepsOf(i);
      areAllRuns = areAllRuns && steps.col == elemBytes_;
      isAnyTransposed = isAnyTransposed || (extent(1) > 1 && steps.row == elemBytes_ && steps.col != elemBytes_);
    }
    const std::int64_t rowBytes = extent(0) * elemBytes_;
    isFused_ = areAllRuns && canReduceRuns(kernel_, sources_.size()) && (rowBytes >= kFusedRowBytes || extent(1) == 1);
    if (isFused_) {
      block_ = {std::min(extent(0), kAheadBytes / elemBytes_), 1};
      return;
    }
    const std::int64_t widestBytes = std::max(std::int64_t{kernel_.accBytes} * kernel_.lanesPerElem, dstElemBytes_);
    const std::int64_t most = static_cast<std::int64_t>(kBlockBytes) / widestBytes;
    block_.cols = std::min(extent(0), most);
    if (isAnyTransposed) {
      // A source whose runs go along the rows is read in squares, so that each cache line is used up while still in the
      // cache.
      block_.cols = std::min<std::int64_t>(block_.cols, 16);
    }
    block_.rows = std::min(extent(1), most / block_.cols);
  }

  // Stores past the caches save the read of the destination's lines. A reduction in place reads the lines as a source.
  bool isInPlace() const {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      if (sources_.bytes(i) == dst_.bytes && sourceStep(i, 0) == dstStep(0) && sourceStep(i, 1) == dstStep(1)) {
        return true;
      }
    }
    return false;
  }

  void chooseStores(std::size_t totalBytes, StoreHint hint) {
    const std::size_t rowBytes = static_cast<std::size_t>(extent(0) * dstElemBytes_);
    const bool isRun = dstStep(0) == dstElemBytes_ && block_.rows == 1 && rowBytes >= kStreamRowBytes;
    isStreamed_ = isRun && !isInPlace() && largeStore() != RowStore::kAhead &&
                  (hint == StoreHint::kStream || (hint == StoreHint::kAuto && totalBytes >= kStreamFromBytes));
    isAhead_ = isRun && (isStreamed_ || totalBytes >= kReduceAheadFromBytes);
  }

  // Distance from this block to the bytes of the same source that are needed about kAheadBytes later: further along the
  // run, or, at the end of the run, the start of a later row. 0: fetch nothing.
  std::int64_t aheadOf(std::size_t source) const {
    if (!isAhead_) {
      return 0;
    }
    const std::int64_t rowBytes = extent(0) * elemBytes_;
    if (index_[0] * elemBytes_ + kAheadBytes < rowBytes) {
      return kAheadBytes;
    }
    if (rowBytes >= kAheadBytes) {
      return sourceStep(source, 1) - (rowBytes - kAheadBytes);
    }
    return (kAheadBytes + rowBytes - 1) / rowBytes * sourceStep(source, 1);
  }

  const std::byte* bytesOf(std::size_t source) const {
    const std::byte* bytes = sources_.bytes(source);
    for (int loop = 0; loop < loops_.size; ++loop) {
      bytes += index_[loop] * sourceStep(source, loop);
    }
    return bytes;
  }

  std::byte* dstBytes() const {
    std::byte* bytes = dst_.bytes;
    for (int loop = 0; loop < loops_.size; ++loop) {
      bytes += index_[loop] * dstStep(loop);
    }
    return bytes;
  }

  struct Lanes {
    const std::byte* bytes;
    std::int64_t ahead;
  };
  // The lanes of one source's block: in place, or gathered into `room`.
  Lanes lanesOf(std::size_t source, Block block, std::byte* room) const {
    const std::byte* bytes = bytesOf(source);
    const Steps steps = stepsOf(source);
    if (isFlat(steps, block, elemBytes_)) {
      return {bytes, aheadOf(source)};
    }
    copyBlock(room, {elemBytes_, block.cols * elemBytes_}, bytes, steps, block, elemBytes_);
    return {room, 0};
  }

  void reduceBlock(Block block) {
    if (isFused_) {
      reduceRuns(block);
      return;
    }
    const std::size_t numLanes = static_cast<std::size_t>(block.cols * block.rows) * kernel_.lanesPerElem;
    std::size_t numCombined = 0;
    if (kernel_.decode != nullptr) {
      const Lanes first = lanesOf(0, block, gathered_[0]);
      kernel_.decode(reinterpret_cast<float*>(acc_), first.bytes, numLanes, first.ahead);
      numCombined = 1;
    } else {
      const Lanes first = lanesOf(0, block, gathered_[0]);
      const Lanes second = lanesOf(1, block, gathered_[1]);
      kernel_.combineTwo(acc_, first.bytes, second.bytes, numLanes, first.ahead, second.ahead);
      numCombined = 2;
    }
    for (std::size_t i = numCombined; i < sources_.size(); ++i) {
      const Lanes next = lanesOf(i, block, gathered_[0]);
      if (kernel_.decode != nullptr) {
        kernel_.decode(decoded_, next.bytes, numLanes, next.ahead);
        kernel_.combine(acc_, decoded_, numLanes, 0);
      } else {
        kernel_.combine(acc_, next.bytes, numLanes, next.ahead);
      }
    }
    storeBlock(block, numLanes);
  }

  void reduceRuns(Block block) const {
    std::array<const std::byte*, kMostRuns> runs;
    std::array<std::int64_t, kMostRuns> aheads;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      runs[i] = bytesOf(i);
      aheads[i] = aheadOf(i);
    }
    kernel_.reduceRuns(dstBytes(), runs.data(), sources_.size(), aheads.data(),
                       static_cast<std::size_t>(block.cols * elemBytes_), isStreamed_);
  }

  void storeBlock(Block block, std::size_t numLanes) {
    std::byte* to = dstBytes();
    const Steps steps{dstStep(0), dstStep(1)};
    if (isFlat(steps, block, dstElemBytes_) && !isStreamed_) {
      encode(to, numLanes);
      return;
    }
    std::byte* stored = gathered_[0];
    encode(stored, numLanes);
    if (isStreamed_) {
      table_.streamOut(to, stored, static_cast<std::size_t>(block.cols * dstElemBytes_));
      return;
    }
    copyBlock(to, steps, stored, {dstElemBytes_, block.cols * dstElemBytes_}, block, dstElemBytes_);
  }

  void encode(std::byte* stored, std::size_t numLanes) {
    if (finish_ == nullptr) {
      kernel_.encode(stored, acc_, numLanes, divisor_);
    } else if (cast_ == nullptr) {
      finish_(stored, acc_, numLanes, divisor_);
    } else {
      finish_(gathered_[1], acc_, numLanes, divisor_);
      cast_(stored, gathered_[1], numLanes);
    }
  }

  const KernelTable& table_;
  const ReduceKernel& kernel_;
  const StridedBox& dst_;
  const SourceList sources_;
  const std::int64_t elemBytes_;  // of the sources
  const std::int64_t dstElemBytes_;
  const std::int64_t divisor_;
  // Only where the destination has another type: finish_ stores the accumulator in the accumulator's own type, then
  // cast_ converts the stored value, unless the destination has the accumulator's type.
  decltype(ReduceKernel::encode) finish_ = nullptr;
  CastLanes cast_ = nullptr;
  JointLoops loops_;
  Block block_;
  bool isFused_ = false;
  bool isStreamed_ = false;
  bool isAhead_ = false;
  const std::int64_t* index_ = nullptr;  // of the block at work, per loop
  alignas(kLineBytes) std::byte acc_[kBlockBytes];
  alignas(kLineBytes) float decoded_[kBlockBytes / sizeof(float)];
  alignas(kLineBytes) std::byte gathered_[2][kBlockBytes];
};

}  // namespace

void reduceBox(const StridedBox& dst, DType dstDtype, std::span<const StridedBox> sources, const Dims& shape,
               DType dtype, ReduceOp op, StoreHint hint) {
  if (sources.size() == 1) {
    castBox(dst, dstDtype, sources[0], dtype, shape, hint);
    return;
  }
  if (numElements(shape) == 0) {
    return;
  }
  const PlainFloats plain;
  BoxReducer(dst, dstDtype, SourceList(sources), shape, dtype, op, hint).run();
}

void reduceBox(const StridedBox& dst, std::span<const StridedBox> sources, const Dims& shape, DType dtype, ReduceOp op,
               StoreHint hint) {
  reduceBox(dst, dtype, sources, shape, dtype, op, hint);
}

namespace {

__attribute__((noinline)) void reduceBlocks(std::byte* dst, std::span<const std::byte* const> sources,
                                            std::size_t numElems, DType dtype, ReduceOp op, StoreHint hint) {
  const PlainFloats plain;
  const std::int64_t elemBytes = static_cast<std::int64_t>(elementBytes(dtype));
  const StridedBox to{dst, {elemBytes}};
  const Dims shape{static_cast<std::int64_t>(numElems)};
  if (sources.size() == 1) {
    copyBox(to, {const_cast<std::byte*>(sources[0]), {elemBytes}}, shape, elementBytes(dtype), hint);
    return;
  }
  BoxReducer(to, dtype, SourceList(sources, elemBytes), shape, dtype, op, hint).run();
}

}  // namespace

void reduceContiguous(std::byte* dst, std::span<const std::byte* const> sources, std::size_t numElems, DType dtype,
                      ReduceOp op, StoreHint hint) {
  if (numElems == 0) {
    return;
  }
  const std::size_t bytes = numElems * elementBytes(dtype);
  const ReduceKernel& kernel = kernels().reduce[static_cast<int>(dtype)][static_cast<int>(op)];
  if (sources.size() > 1 && bytes <= kBlockBytes && canReduceRuns(kernel, sources.size())) {
    // The loops over a box, and the stack that they need, cost more than the reduction of some elements.
    static constexpr std::int64_t kNoAheads[kMostRuns] = {};
    const PlainFloats plain;
    kernel.reduceRuns(dst, sources.data(), sources.size(), kNoAheads, bytes, false);
    return;
  }
  reduceBlocks(dst, sources, numElems, dtype, op, hint);
}

}  // namespace shardwire::internal
