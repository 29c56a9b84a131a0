// dst = src[0] op src[1] op ... op src[k-1], elementwise, strictly in that order: same inputs, same bits, on every CPU.
// Kernels per dtype and op are chosen once by CPU features. Pure functions over the caller's memory; no allocation; any
// thread.
//
// Arithmetic: f16, bf16 and all fp8 accumulate in f32 and round once at the end (to nearest even). Integers wrap. bool:
// sum = or, prod = and, min = and, max = or. min/max propagate NaN. kMean divides the sum by k (integers truncate
// toward zero; f16/bf16/fp8 divide in f32; complex divide both parts; bool: true where all are). kBand/kBor/kBxor on
// integers and bool. Complex products are (a+bi)(c+di) written out. Every NaN in a result of two or more sources is the
// dtype's one positive quiet NaN. One source: a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/boxes/copy_box.h"
#include "shardwire/export.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// Contiguous: n elements each. dst may equal one of the sources exactly; otherwise no overlap. Precondition:
// supportsReduction(dtype, op), k >= 1.
SHARDWIRE_EXPORT void reduceContiguous(std::byte* dst, std::span<const std::byte* const> sources, std::size_t numElems,
                                       DType dtype, ReduceOp op, StoreHint hint = StoreHint::kAuto);

// Boxes of `shape`. sources.size() <= any number. dst may be identical to one of the sources.
SHARDWIRE_EXPORT void reduceBox(const StridedBox& dst, std::span<const StridedBox> sources, const Dims& shape,
                                DType dtype, ReduceOp op, StoreHint hint = StoreHint::kAuto);
// The same into a destination of another type: the accumulator is rounded once, into that. Precondition:
// supportsCast(dtype, dstDtype); dst is none of the sources unless the types are equal.
SHARDWIRE_EXPORT void reduceBox(const StridedBox& dst, DType dstDtype, std::span<const StridedBox> sources,
                                const Dims& shape, DType dtype, ReduceOp op, StoreHint hint = StoreHint::kAuto);

}  // namespace shardwire::internal
