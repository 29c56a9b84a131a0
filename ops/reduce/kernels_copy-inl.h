// Rows of bytes from one strided place to another. Included by kernels.cc only.
//
// A cold copy spends most of its time waiting for reads, not writing. Three things help, measured in
// docs/benchmarks.md:
// - prefetch to L2 (not L1): a core keeps many more L2 misses in flight than L1 misses;
// - two streams at once, the two halves of a row, so that two pages are read ahead;
// - stores past the cache, so that the destination is not read first.
// Two streams past the cache are another choice than one, which is measured on each host (RowStore::kStreamPair). On
// Zen 3, two streams of stores shorter than a line (AVX2, SSE2) ran at a tenth of one stream's speed where the
// destination lies 64 bytes above the source modulo 4,096. Every large tensor of torch lies so above a page-aligned
// block. Unmeasured, such stores are one stream.
#pragma once

namespace shardwire::internal::SW_KERNEL_ISA {
namespace {

constexpr std::size_t kLineBytes = 64;
// How far ahead of use a source is fetched. Far enough for memory latency, near enough to stay in any L2.
constexpr std::size_t kAheadBytes = 8192;
// Rows up to this long are one stream.
constexpr std::size_t kOneStreamBytes = 1024;

inline void prefetchLine(const std::byte* line) {
  __builtin_prefetch(line, 0, 2);  // 2: into L2
}

// The widest register, as bytes.
#if defined(__AVX512F__)
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif
template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <typename T>
using Vector = typename VectorOf<T>::type;

template <typename T>
inline Vector<T> loadVector(const void* lanes) {
  Vector<T> vector;
  __builtin_memcpy(&vector, lanes, kVectorBytes);
  return vector;
}

// With kStream dst is aligned to a vector.
template <bool kStream, typename T>
inline void storeVector(std::byte* dst, Vector<T> vector) {
  if constexpr (kStream) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), __builtin_bit_cast(__m512i, vector));
#elif defined(__AVX2__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), __builtin_bit_cast(__m256i, vector));
#elif defined(__SSE2__)
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst), __builtin_bit_cast(__m128i, vector));
#else
    __builtin_memcpy(dst, &vector, kVectorBytes);
#endif
  } else {
    __builtin_memcpy(dst, &vector, kVectorBytes);
  }
}

#if defined(SW_KERNEL_NEON)
// Stores one line; dst is aligned to a line. The only store of aarch64 past the cache takes two registers; reductions,
// which have one register at a time, use ordinary stores.
template <bool kStream>
inline void storeLine(std::byte* dst, const Vector<std::uint64_t>* line) {
  struct TwoVectors {
    std::byte bytes[2 * kVectorBytes];
  };
  for (std::size_t i = 0; i < kLineBytes / kVectorBytes; i += 2) {
    std::byte* const place = dst + i * kVectorBytes;
    if constexpr (kStream) {
      asm volatile("stnp %q1, %q2, %0" : "=Q"(*reinterpret_cast<TwoVectors*>(place)) : "w"(line[i]), "w"(line[i + 1]));
    } else {
      __builtin_memcpy(place, line + i, sizeof(TwoVectors));
    }
  }
}
#endif

constexpr RowStore kUnmeasuredLargeStore = kVectorBytes == kLineBytes ? RowStore::kStreamPair : RowStore::kStream;

// Copies one line; dst is aligned to a line.
template <bool kStream>
inline void copyLine(std::byte* dst, const std::byte* src) {
#if defined(SW_KERNEL_NEON)
  Vector<std::uint64_t> line[kLineBytes / kVectorBytes];
  __builtin_memcpy(line, src, kLineBytes);
  storeLine<kStream>(dst, line);
#else
  for (std::size_t i = 0; i < kLineBytes; i += kVectorBytes) {
    storeVector<kStream, std::uint64_t>(dst + i, loadVector<std::uint64_t>(src + i));
  }
#endif
}

// Copies two lines. Both are loaded first: the halves of a stretch are often a page apart, so that the second load
// equals the first store modulo a page.
template <bool kStream>
inline void copyTwoLines(std::byte* dst, std::byte* dst2, const std::byte* src, const std::byte* src2) {
  constexpr std::size_t kVectors = kLineBytes / kVectorBytes;
  Vector<std::uint64_t> line[kVectors], line2[kVectors];
  for (std::size_t i = 0; i < kVectors; ++i) {
    line[i] = loadVector<std::uint64_t>(src + i * kVectorBytes);
    line2[i] = loadVector<std::uint64_t>(src2 + i * kVectorBytes);
  }
#if defined(SW_KERNEL_NEON)
  storeLine<kStream>(dst, line);
  storeLine<kStream>(dst2, line2);
#else
  for (std::size_t i = 0; i < kVectors; ++i) {
    storeVector<kStream, std::uint64_t>(dst + i * kVectorBytes, line[i]);
  }
  for (std::size_t i = 0; i < kVectors; ++i) {
    storeVector<kStream, std::uint64_t>(dst2 + i * kVectorBytes, line2[i]);
  }
#endif
}

// Whether dst lies so little above the nearest source modulo a page that a walk upward loads, soon after each store, an
// address that equals the store's modulo a page. CPUs compare no more at first, and the load waits: at a distance of 64
// bytes, sums in L1 ran at a fifth of their speed on Zen 4. A walk downward loads such an address before the store.
inline bool isWalkedBackward(const std::byte* dst, const std::byte* const* sources, std::size_t numSources) {
  constexpr std::uintptr_t kPageBytes = 4096;
  std::uintptr_t nearest = kPageBytes;
  bool isAbove = false;
  for (std::size_t i = 0; i < numSources; ++i) {
    const std::uintptr_t above =
        (reinterpret_cast<std::uintptr_t>(dst) - reinterpret_cast<std::uintptr_t>(sources[i])) % kPageBytes;
    const std::uintptr_t distance = above < kPageBytes / 2 ? above : kPageBytes - above;
    if (above != 0 && distance < nearest) {
      nearest = distance;
      isAbove = above < kPageBytes / 2;
    }
  }
  return isAbove;
}

// Copies whole lines and fetches, as it goes, the lines `ahead` bytes further on in the source. Prefetching never
// faults, so the last rows of a box fetch what lies after it: often the next segment, else wasted but harmless.
template <bool kStream, bool kPair>
void copyLines(std::byte* dst, const std::byte* src, std::size_t numLines, std::int64_t ahead) {
  const bool isOneStream = !kPair || numLines * kLineBytes <= kOneStreamBytes;
  const bool isBackward = isWalkedBackward(dst, &src, 1);
  const std::size_t half = isOneStream ? 0 : numLines / 2;
  // The place of the i-th of so many lines from `first` on.
  const auto place = [=](std::size_t first, std::size_t count, std::size_t i) {
    const std::size_t at = (first + (isBackward ? count - 1 - i : i)) * kLineBytes;
    prefetchLine(src + at + ahead);
    return at;
  };
  for (std::size_t i = 0; i < half; ++i) {
    const std::size_t at = place(0, half, i), at2 = place(half, half, i);
    copyTwoLines<kStream>(dst + at, dst + at2, src + at, src + at2);
  }
  for (std::size_t i = 2 * half; i < numLines; ++i) {
    const std::size_t at = place(2 * half, numLines - 2 * half, i - 2 * half);
    copyLine<kStream>(dst + at, src + at);
  }
}

inline std::size_t bytesToNextLine(const std::byte* bytes) {
  return static_cast<std::size_t>(-reinterpret_cast<std::uintptr_t>(bytes)) % kLineBytes;
}

// One row. nextRow: distance in the source from here to a row that will be needed about kAheadBytes later.
template <bool kStream, bool kPair>
void copyRow(std::byte* dst, const std::byte* src, std::size_t bytes, std::int64_t nextRow) {
  const std::size_t misaligned = bytesToNextLine(dst);
  const std::size_t head = misaligned < bytes ? misaligned : bytes;
  __builtin_memcpy(dst, src, head);
  dst += head;
  src += head;
  bytes -= head;
  const std::size_t numLines = bytes / kLineBytes;
  const std::size_t numPieces = bytes < 2 * kAheadBytes ? 1 : bytes / kAheadBytes;
  const std::size_t pieceLines = numLines / numPieces;
  for (std::size_t piece = 0; piece + 1 < numPieces; ++piece) {
    copyLines<kStream, kPair>(dst, src, pieceLines, static_cast<std::int64_t>(pieceLines * kLineBytes));
    dst += pieceLines * kLineBytes;
    src += pieceLines * kLineBytes;
  }
  // The last piece fetches the first piece of the row to come.
  const std::size_t done = (numPieces - 1) * pieceLines;
  copyLines<kStream, kPair>(dst, src, numLines - done, nextRow - static_cast<std::int64_t>(done * kLineBytes));
  const std::size_t tail = (numLines - done) * kLineBytes;
  __builtin_memcpy(dst + tail, src + tail, bytes - numLines * kLineBytes);
}

template <bool kStream, bool kPair>
void copyRowsAhead(std::byte* dst, std::int64_t dstStride, const std::byte* src, std::int64_t srcStride,
                   std::size_t rowBytes, std::size_t numRows) {
  const std::size_t rowsAhead = rowBytes >= kAheadBytes ? 1 : (kAheadBytes + rowBytes - 1) / rowBytes;
  const std::int64_t nextRow = static_cast<std::int64_t>(rowsAhead) * srcStride;
  for (std::size_t row = 0; row < numRows; ++row) {
    copyRow<kStream, kPair>(dst, src, rowBytes, nextRow);
    dst += dstStride;
    src += srcStride;
  }
}

void copyRows(std::byte* dst, std::int64_t dstStride, const std::byte* src, std::int64_t srcStride,
              std::size_t rowBytes, std::size_t numRows, RowStore store) {
  if (store == RowStore::kStreamPair) {
    copyRowsAhead<true, true>(dst, dstStride, src, srcStride, rowBytes, numRows);
  } else if (store == RowStore::kStream) {
    copyRowsAhead<true, false>(dst, dstStride, src, srcStride, rowBytes, numRows);
  } else if (store == RowStore::kAhead) {
    copyRowsAhead<false, true>(dst, dstStride, src, srcStride, rowBytes, numRows);
  } else {
    for (std::size_t row = 0; row < numRows; ++row) {
      __builtin_memcpy(dst, src, rowBytes);
      dst += dstStride;
      src += srcStride;
    }
  }
}

void streamOut(std::byte* dst, const std::byte* buffer, std::size_t bytes) {
  const std::size_t misaligned = bytesToNextLine(dst);
  const std::size_t head = misaligned < bytes ? misaligned : bytes;
  __builtin_memcpy(dst, buffer, head);
  std::size_t i = head;
  for (; i + kLineBytes <= bytes; i += kLineBytes) {
    copyLine<true>(dst + i, buffer + i);
  }
  __builtin_memcpy(dst + i, buffer + i, bytes - i);
}

void fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace shardwire::internal::SW_KERNEL_ISA
