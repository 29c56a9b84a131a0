// The loops of a move between two boxes, in the order of joinLoops(), with the steps of both boxes. Plain values, any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "ops/boxes/joint_loops.h"
#include "ops/boxes/strided_runs.h"

namespace shardwire::internal {

struct PairLoop {
  std::int64_t extent;
  std::int64_t dstStep;  // in bytes, as srcStep
  std::int64_t srcStep;
};

struct PairLoops {
  // [0] is innermost. Loops from `size` on are not initialised: filling 16 loops takes longer than a short copy.
  std::array<PairLoop, kMaxDims> loops;
  std::size_t size = 0;
  std::int64_t dstElem = 1;  // bytes of an element
  std::int64_t srcElem = 1;

  const PairLoop& operator[](std::size_t i) const { return loops[i]; }
  // There are always two loops for the leaves: a missing loop is one step of one element.
  void pad() {
    for (; size < 2; ++size) {
      loops[size] = {1, dstElem, srcElem};
    }
  }
  bool isRunBoth() const { return loops[0].dstStep == dstElem && loops[0].srcStep == srcElem; }
  // Makes the first loop whose step in the source is one element loop 1; false: there is no such loop.
  bool transpose() {
    for (std::size_t i = 1; i < size; ++i) {
      if (loops[i].srcStep == srcElem && loops[i].extent > 1) {
        std::swap(loops[1], loops[i]);
        return true;
      }
    }
    return false;
  }
  // Calls inner(dst, src) for the two innermost loops at every index of the outer loops.
  template <typename Inner>
  void forEachOuter(std::byte* dst, const std::byte* src, Inner&& inner) const {
    std::array<std::int64_t, kMaxDims> index{};
    while (true) {
      inner(dst, src);
      std::size_t i = 2;
      for (; i < size; ++i) {
        const PairLoop& loop = loops[i];
        dst += loop.dstStep;
        src += loop.srcStep;
        if (++index[i] < loop.extent) {
          break;
        }
        dst -= loop.dstStep * loop.extent;
        src -= loop.srcStep * loop.extent;
        index[i] = 0;
      }
      if (i >= size) {
        return;
      }
    }
  }
};

// Precondition: every extent of shape > 0.
inline PairLoops pairLoopsOf(const StridedBox& dst, std::size_t dstElemBytes, const StridedBox& src,
                             std::size_t srcElemBytes, const Dims& shape) {
  const JointLoops joined = joinLoops(
      shape, 2, [&](std::size_t tensor, int dim) { return tensor == 0 ? dst.byteStrides[dim] : src.byteStrides[dim]; });
  PairLoops pairs;
  pairs.dstElem = static_cast<std::int64_t>(dstElemBytes);
  pairs.srcElem = static_cast<std::int64_t>(srcElemBytes);
  for (; pairs.size < static_cast<std::size_t>(joined.size); ++pairs.size) {
    const JointLoop& loop = joined.loops[pairs.size];
    pairs.loops[pairs.size] = {loop.extent, dst.byteStrides[loop.dim], src.byteStrides[loop.dim]};
  }
  pairs.pad();
  return pairs;
}

}  // namespace shardwire::internal
