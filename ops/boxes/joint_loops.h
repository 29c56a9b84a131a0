// The loops that walk one box in several strided tensors at once: dimensions that all tensors allow to be one are one,
// and the innermost is the one with the smallest steps in the first tensor. Plain values, any thread. Used where the
// order of visits does not matter.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "shardwire/types.h"

namespace shardwire::internal {

// Rows shorter than this are not written past the cache: parts of lines cost more there than in it.
inline constexpr std::size_t kStreamRowBytes = 512;

// An element of 16 bytes, when it is moved only.
struct Word16 {
  std::uint64_t halves[2];
};

struct JointLoop {
  std::int64_t extent = 1;
  // Every tensor's step is its byte stride of this dimension.
  int dim = 0;
};

struct JointLoops {
  std::array<JointLoop, kMaxDims> loops;  // [0] is innermost
  int size = 0;                           // 0: one element
};

// strideOf(tensor, dim): the byte stride of one of numTensors tensors. Precondition: every extent of shape > 0.
template <typename StrideOf>
JointLoops joinLoops(const Dims& shape, std::size_t numTensors, StrideOf&& strideOf) {
  JointLoops sorted;
  for (int dim = shape.size() - 1; dim >= 0; --dim) {
    if (shape[dim] == 1) {
      continue;
    }
    // Insertion sort: by the first tensor's stride, then by the second's, then later dimensions first.
    int at = sorted.size++;
    const auto isInside = [&](int a, int b) {
      for (std::size_t tensor = 0; tensor < numTensors && tensor < 2; ++tensor) {
        if (strideOf(tensor, a) != strideOf(tensor, b)) {
          return strideOf(tensor, a) < strideOf(tensor, b);
        }
      }
      return false;
    };
    for (; at > 0 && isInside(dim, sorted.loops[static_cast<std::size_t>(at - 1)].dim); --at) {
      sorted.loops[static_cast<std::size_t>(at)] = sorted.loops[static_cast<std::size_t>(at - 1)];
    }
    sorted.loops[static_cast<std::size_t>(at)] = {shape[dim], dim};
  }

  JointLoops joined;
  for (int i = 0; i < sorted.size; ++i) {
    const JointLoop& loop = sorted.loops[static_cast<std::size_t>(i)];
    if (joined.size > 0) {
      JointLoop& inner = joined.loops[static_cast<std::size_t>(joined.size - 1)];
      bool canJoin = true;
      for (std::size_t tensor = 0; tensor < numTensors && canJoin; ++tensor) {
        canJoin = strideOf(tensor, loop.dim) == inner.extent * strideOf(tensor, inner.dim);
      }
      if (canJoin) {
        inner.extent *= loop.extent;
        continue;
      }
    }
    joined.loops[static_cast<std::size_t>(joined.size++)] = loop;
  }
  return joined;
}

}  // namespace shardwire::internal
