// Copies a box of one strided tensor to a box of another tensor, packs a box into contiguous bytes, and unpacks such
// bytes into a box. Pure functions over memory of the caller; no allocation; any thread.
#pragma once

#include <cstddef>

#include "ops/boxes/strided_runs.h"
#include "shardwire/export.h"

namespace shardwire::internal {

// How the destination is written. The bytes are the same either way; only the speed differs.
enum class StoreHint : unsigned char {
  kAuto = 0,    // by the bytes of this call
  kCached = 1,  // the destination is used again soon (a ring): ordinary stores
  kStream = 2,  // this call is a piece of a move much larger than the caches: long rows are stored past the caches
  kFar = 3,     // the source is in another core's cache or in memory: ordinary stores, and the source is fetched ahead
};

// With kAuto, moves of this many bytes or more are streamed. Pieces of such a move should be given kStream. Measured:
// from this size on streaming does not lose even where the destination is warm and read again at once.
inline constexpr std::size_t kStreamFromBytes = std::size_t{8} << 20;

// Copies a box of `shape` elements of `elemBytes` bytes, a size that some dtype has. Dimensions are collapsed jointly,
// contiguous runs are moved as blocks, transposes are blocked for the cache. When the function returns, all bytes are
// visible in order with later stores. `dst` and `src` may be identical (then nothing is done) but must not overlap
// otherwise. Where the extent is above 1, the stride of `dst` must not be 0.
SHARDWIRE_EXPORT void copyBox(const StridedBox& dst, const StridedBox& src, const Dims& shape, std::size_t elemBytes,
                              StoreHint hint = StoreHint::kAuto);
// One run of bytes, as a box of one row is copied.
SHARDWIRE_EXPORT void copyRun(std::byte* dst, const std::byte* src, std::size_t bytes, StoreHint hint);
// Row-major packing; returns the number of bytes.
std::size_t packBox(std::byte* packed, const StridedBox& src, const Dims& shape, std::size_t elemBytes,
                    StoreHint hint = StoreHint::kCached);
std::size_t unpackBox(const StridedBox& dst, const std::byte* packed, const Dims& shape, std::size_t elemBytes,
                      StoreHint hint = StoreHint::kAuto);

}  // namespace shardwire::internal
