// The inner loops that are compiled once per instruction set, as tables of plain functions, and the choice between
// them. Any thread.
//
// kernels.cc is built several times, so nothing here may tempt it to emit inline functions of the std headers: plain
// pointers only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shardwire/types.h"

namespace shardwire::internal {

// How rows are written.
enum class RowStore : unsigned char {
  kPlain = 0,       // memcpy per row: everything is small or warm
  kAhead = 1,       // ordinary stores, sources fetched ahead into L2: cold source, warm destination
  kStream = 2,      // stores past the cache, sources fetched ahead: cold source and destination. Unordered until the
                    // table's fence().
  kStreamPair = 3,  // as kStream, with both halves of a row side by side. Reductions have one stream all the same.
};

// How a dtype and op are reduced, on lanes: one per element, two (real, imaginary) for complex. acc is an array of
// accumulator lanes (float for the 8 and 16 bit floats, else the dtype itself). Pointers to sources may be unaligned;
// outputs overlap no source, unless said otherwise. ahead: while a source is read, the lines that many bytes further on
// are fetched into L2; 0 costs next to nothing.
inline constexpr std::size_t kMostRuns = 8;
struct ReduceKernel {
  // acc = the values of n stored lanes. Null: the stored lanes are accumulator lanes already.
  void (*decode)(float* acc, const std::byte* stored, std::size_t numLanes, std::int64_t ahead) = nullptr;
  // acc = acc op b.
  void (*combine)(void* acc, const void* b, std::size_t numLanes, std::int64_t ahead) = nullptr;
  // acc = a op b.
  void (*combineTwo)(void* acc, const void* a, const void* b, std::size_t numLanes, std::int64_t aheadA,
                     std::int64_t aheadB) = nullptr;
  // Stores acc (divided by divisor unless that is 0), with the one NaN of the dtype for every NaN.
  void (*encode)(std::byte* stored, const void* acc, std::size_t numLanes, std::int64_t divisor) = nullptr;
  // All of it at once for `bytes` of 2 to kMostRuns sources, past the cache if asked: stored = s[0] op s[1] op ..., for
  // kMean divided by numSources. stored may be one of the sources. aheads: one for each source. Null where the other
  // functions must do.
  void (*reduceRuns)(std::byte* stored, const std::byte* const* sources, std::size_t numSources,
                     const std::int64_t* aheads, std::size_t bytes, bool isStreamed) = nullptr;
  bool runsDivideByPowersOfTwo = false;  // by no other number
  std::uint8_t lanesPerElem = 1;
  std::uint8_t accBytes = 0;  // of one lane
};

// dst = the n lanes of src as lanes of another type. No overlap; may be unaligned.
using CastLanes = void (*)(std::byte* dst, const std::byte* src, std::size_t numLanes);

struct KernelTable {
  const char* name;
  // How moves larger than the caches are stored, unless the host was measured.
  RowStore largeStore;
  // Copies numRows rows of rowBytes; strides in bytes.
  void (*copyRows)(std::byte* dst, std::int64_t dstStride, const std::byte* src, std::int64_t srcStride,
                   std::size_t rowBytes, std::size_t numRows, RowStore store);
  // Stores bytes from a buffer in L1 past the cache.
  void (*streamOut)(std::byte* dst, const std::byte* buffer, std::size_t bytes);
  // Makes streamed rows visible to other cores in order with later stores.
  void (*fence)();
  // encode is null where supportsReduction() says no.
  ReduceKernel reduce[kNumDTypes][kNumReduceOps];
  // [from][to]: null where the two are equal, or supportsCast() says no. Complex elements are two lanes.
  CastLanes castLanes[kNumDTypes][kNumDTypes];
  // Casts numRows rows of rowLanes lanes; strides and sizes of lanes in bytes. `cast` is one of the above.
  void (*castRows)(CastLanes cast, std::byte* dst, std::int64_t dstStride, std::size_t dstLaneBytes,
                   const std::byte* src, std::int64_t srcStride, std::size_t srcLaneBytes, std::size_t rowLanes,
                   std::size_t numRows, RowStore store);
  // acc = factor * lanes; with `adds`, acc = acc + factor * lanes. `lanes` may be unaligned.
  void (*addScaled)(float* acc, const void* lanes, float factor, std::size_t numLanes, bool adds);
};

enum class Isa : unsigned char { kBaseline = 0, kAvx2 = 1, kAvx512 = 2, kNeon = 3 };
inline constexpr int kNumIsas = 4;

// The table of one level; null when this build or this CPU does not have it. The baseline is always there.
const KernelTable* kernelsOf(Isa isa);
// The best level that the CPU has, or the one that SHARDWIRE_ISA=baseline|avx2|avx512|neon names (when the CPU has
// it); chosen once.
const KernelTable& kernels();

// How moves larger than the caches are stored: kAhead, kStream or kStreamPair.
RowStore largeStore();
void useLargeStore(RowStore store);

// How moves smaller than the caches are stored, whose source is in this core's cache: kAhead or kPlain, for rows of a
// page or more. Unless the host was measured, kAhead.
RowStore cachedStore();
void useCachedStore(RowStore store);

// Whether long payloads are packed past the caches for another core of the host. Unless the host was measured, they
// are.
bool streamsStaged();
void useStreamsForStaged(bool streams);

// For tests: from now on kernels() gives this table. Precondition: kernelsOf(isa) is not null; no kernel is running.
void useKernelsForTest(Isa isa);

}  // namespace shardwire::internal
