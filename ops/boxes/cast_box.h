// Copies a box into a box of another element type: as torch's `.to`, fused into the copy.
// Pure functions over memory that the caller owns; no allocation; any thread.
#pragma once

#include <cstddef>

#include "ops/boxes/copy_box.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// As copyBox; each element is rounded to nearest even, once. Precondition: supportsCast(srcDtype, dstDtype); the boxes
// do not overlap unless the types are equal (then it is copyBox).
void castBox(const StridedBox& dst, DType dstDtype, const StridedBox& src, DType srcDtype, const Dims& shape,
             StoreHint hint = StoreHint::kAuto);
// Row-major packing as `packedDtype`; returns the number of bytes.
std::size_t packCastBox(std::byte* packed, DType packedDtype, const StridedBox& src, DType srcDtype, const Dims& shape,
                        StoreHint hint = StoreHint::kCached);
void unpackCastBox(const StridedBox& dst, DType dstDtype, const std::byte* packed, DType packedDtype, const Dims& shape,
                   StoreHint hint = StoreHint::kAuto);

}  // namespace shardwire::internal
