// A tensor as the inside knows it: a pointer, a dtype, a shape and strides. Owns nothing: whoever passes one keeps the
// memory alive.
#pragma once

#include "shardwire/types.h"

namespace shardwire {

struct TensorView {
  // Address of element [0, ..., 0]; may be null when a dimension is 0.
  std::byte* bytes = nullptr;
  DType dtype = DType::kFloat32;
  Dims shape;
  // One per dimension of `shape`, in elements, not bytes; never negative. 0 (an expanded tensor) is legal for inputs
  // only.
  Dims strides;
  // Identity of what owns the memory, for a StorageWatch; null: unknown, and nothing is remembered about the memory
  // after an operation.
  const void* storage = nullptr;

  static TensorView contiguous(void* bytes, DType dtype, const Dims& shape) {
    return {static_cast<std::byte*>(bytes), dtype, shape, contiguousStrides(shape)};
  }
};

}  // namespace shardwire
