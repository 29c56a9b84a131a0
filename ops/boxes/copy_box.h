// Copies a box of one strided tensor to a box of another, packs it into contiguous bytes, and unpacks it from them.
// Pure functions over memory that the caller owns; no allocation; any thread.
#pragma once

#include <cstddef>

#include "ops/boxes/strided_runs.h"

namespace shardwire::internal {

// How the destination is written. Same bytes either way; a matter of speed.
enum class StoreHint : unsigned char {
  kAuto = 0,    // by the bytes of this call
  kCached = 1,  // the destination is used again soon (a ring): ordinary stores
  kStream = 2,  // this call is a piece of a move much larger than the caches: stores that bypass them, where rows are long enough
};

// From this many bytes on a move streams by itself (kAuto), and pieces of it should be given kStream: measured, the point where even a warm
// destination that is read again at once does not lose by it.
inline constexpr std::size_t kStreamFromBytes = std::size_t{8} << 20;

// Copies a box of `shape` elements of `elemBytes` bytes. Dimensions are collapsed jointly, contiguous runs are moved as blocks, transposes
// are blocked for the cache. When it returns, all bytes are visible in order with later stores. `dst` and `src` may be identical (nothing
// is done), not otherwise overlap. Strides of `dst` are not 0 where the extent is above 1.
void copyBox(const StridedBox& dst, const StridedBox& src, const Dims& shape, std::size_t elemBytes, StoreHint hint = StoreHint::kAuto);
// Row-major packing; returns the number of bytes.
std::size_t packBox(std::byte* packed, const StridedBox& src, const Dims& shape, std::size_t elemBytes,
                    StoreHint hint = StoreHint::kCached);
std::size_t unpackBox(const StridedBox& dst, const std::byte* packed, const Dims& shape, std::size_t elemBytes,
                      StoreHint hint = StoreHint::kAuto);

}  // namespace shardwire::internal
