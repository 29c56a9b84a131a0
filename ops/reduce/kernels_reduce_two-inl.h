// Reductions of two sources in one go, from load to (streamed) store: the common case, and the one where memory is the
// limit. Included by kernels.cc only. The same bits as combineTwo and encode.
#pragma once

namespace shardwire::internal::SW_KERNEL_ISA {
namespace {

template <typename T, typename Op, bool kMean>
inline Vector<T> combineVectors(Vector<T> a, Vector<T> b) {
  const Vector<T> value = Op::of(a, b);
  if constexpr (kMean) {
    return value / static_cast<T>(2);
  } else {
    return value;
  }
}

// One step of reduceTwo(): kBytes of each source to kBytes of the destination, which is aligned to them.
template <typename T, typename Op, bool kMean>
struct SameStep {
  static constexpr std::size_t kBytes = kVectorBytes;
  template <bool kStream>
  static void run(std::byte* dst, const std::byte* a, const std::byte* b) {
    Vector<T> value = combineVectors<T, Op, kMean>(loadVector<T>(a), loadVector<T>(b));
    if constexpr (kIsFloating<T>) {
      const Vector<T> nan = Vector<T>{} + static_cast<T>(__builtin_nanf(""));
      value = value != value ? nan : value;
    }
    storeVector<kStream, T>(dst, value);
  }
};

// 16 bit lanes that are computed as float.
struct Bits16 {
  typedef std::uint16_t type __attribute__((vector_size(kVectorBytes / 2)));
};
using Half = Bits16::type;

// The low halves of the lanes, and back. GCC 12 makes slow code of __builtin_convertvector here.
inline Half narrow(Vector<std::uint32_t> lanes) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(Half, _mm512_maskz_cvtepi32_epi16(0xFFFF, __builtin_bit_cast(__m512i, lanes)));
#elif defined(__AVX2__)
  const __m256i all = __builtin_bit_cast(__m256i, lanes);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 0x08);
  return __builtin_bit_cast(Half, _mm256_castsi256_si128(packed));
#else
  return __builtin_convertvector(lanes, Half);
#endif
}

inline Vector<std::uint32_t> widen(Half lanes) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(Vector<std::uint32_t>,
                            _mm512_maskz_cvtepu16_epi32(0xFFFF, __builtin_bit_cast(__m256i, lanes)));
#elif defined(__AVX2__)
  return __builtin_bit_cast(Vector<std::uint32_t>, _mm256_cvtepu16_epi32(__builtin_bit_cast(__m128i, lanes)));
#else
  return __builtin_convertvector(lanes, Vector<std::uint32_t>);
#endif
}

inline Vector<float> decodeHalf(Half stored, BFloat16) {
  return __builtin_bit_cast(Vector<float>, widen(stored) << 16);
}
inline Half encodeHalf(Vector<float> value, BFloat16) {
  const Vector<std::uint32_t> bits = __builtin_bit_cast(Vector<std::uint32_t>, value);
  const Vector<std::uint32_t> rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const Vector<std::uint32_t> nan = Vector<std::uint32_t>{} + 0x7FC0;
  return narrow(value != value ? nan : rounded);
}

#if defined(__F16C__)
inline Vector<float> decodeHalf(Half stored, Float16) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(Vector<float>, _mm512_maskz_cvtph_ps(0xFFFF, __builtin_bit_cast(__m256i, stored)));
#else
  return __builtin_bit_cast(Vector<float>, _mm256_cvtph_ps(__builtin_bit_cast(__m128i, stored)));
#endif
}
inline Half encodeHalf(Vector<float> value, Float16) {
  constexpr int kRound = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  // Of this NaN the conversion makes the NaN of float16.
  const Vector<float> nan = Vector<float>{} + __builtin_nanf("");
  value = value != value ? nan : value;
#if defined(__AVX512F__)
  return __builtin_bit_cast(Half, _mm512_maskz_cvtps_ph(0xFFFF, __builtin_bit_cast(__m512, value), kRound));
#else
  return __builtin_bit_cast(Half, _mm256_cvtps_ph(__builtin_bit_cast(__m256, value), kRound));
#endif
}
#endif

template <bool kStream>
inline void storeHalf(std::byte* dst, Half half) {
  if constexpr (kStream) {
#if defined(__AVX512F__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), __builtin_bit_cast(__m256i, half));
    return;
#elif defined(__AVX2__)
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst), __builtin_bit_cast(__m128i, half));
    return;
#elif defined(__SSE2__)
    _mm_stream_si64(reinterpret_cast<long long*>(dst), __builtin_bit_cast(long long, half));
    return;
#endif
  }
  __builtin_memcpy(dst, &half, sizeof(Half));
}

template <typename Type, typename Op, bool kMean>
struct HalfStep {
  static constexpr std::size_t kBytes = sizeof(Half);
  template <bool kStream>
  static void run(std::byte* dst, const std::byte* a, const std::byte* b) {
    Half halfA, halfB;
    __builtin_memcpy(&halfA, a, kBytes);
    __builtin_memcpy(&halfB, b, kBytes);
    const Vector<float> value = combineVectors<float, Op, kMean>(decodeHalf(halfA, Type{}), decodeHalf(halfB, Type{}));
    storeHalf<kStream>(dst, encodeHalf(value, Type{}));
  }
};

// Lines of a op b, in two streams like copyLines(). Each step is read before it is written, so dst may be a or b.
template <typename Step, bool kStream>
void reduceTwoLines(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t numLines, std::int64_t aheadA,
                    std::int64_t aheadB) {
  const auto line = [=](std::size_t at) {
    prefetchLine(a + at + aheadA);
    prefetchLine(b + at + aheadB);
    for (std::size_t i = at; i < at + kLineBytes; i += Step::kBytes) {
      Step::template run<kStream>(dst + i, a + i, b + i);
    }
  };
  const bool isOneStream = !hasTwoStreams<kStream>(Step::kBytes) || numLines * kLineBytes <= kOneStreamBytes;
  const std::size_t half = isOneStream ? 0 : numLines / 2 * kLineBytes;
  for (std::size_t at = 0; at < half; at += kLineBytes) {
    line(at);
    line(half + at);
  }
  for (std::size_t at = 2 * half; at < numLines * kLineBytes; at += kLineBytes) {
    line(at);
  }
}

// Bytes that do not fill a whole line of dst go through buffers of one step. The size of a step is a multiple of the
// size of a lane.
template <typename Step>
void reduceTwoPart(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += Step::kBytes) {
    const std::size_t now = bytes - at < Step::kBytes ? bytes - at : Step::kBytes;
    alignas(kLineBytes) std::byte partA[Step::kBytes] = {}, partB[Step::kBytes] = {}, part[Step::kBytes];
    __builtin_memcpy(partA, a + at, now);
    __builtin_memcpy(partB, b + at, now);
    Step::template run<false>(part, partA, partB);
    __builtin_memcpy(dst + at, part, now);
  }
}

template <typename Step>
void reduceTwoSteps(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t bytes, std::int64_t aheadA,
                    std::int64_t aheadB, std::size_t laneBytes, bool isStreamed) {
  const std::size_t misaligned = bytesToNextLine(dst);
  if (misaligned % laneBytes != 0) {  // then no line boundary is a lane boundary
    reduceTwoPart<Step>(dst, a, b, bytes);
    return;
  }
  const std::size_t head = misaligned < bytes ? misaligned : bytes;
  reduceTwoPart<Step>(dst, a, b, head);
  dst += head, a += head, b += head, bytes -= head;
  const std::size_t numLines = bytes / kLineBytes, body = numLines * kLineBytes;
  if (isStreamed) {
    reduceTwoLines<Step, true>(dst, a, b, numLines, aheadA, aheadB);
  } else {
    reduceTwoLines<Step, false>(dst, a, b, numLines, aheadA, aheadB);
  }
  reduceTwoPart<Step>(dst + body, a + body, b + body, bytes - body);
}

template <typename T, typename Op>
void reduceTwo(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t numLanes, std::int64_t aheadA,
               std::int64_t aheadB, bool isMean, bool isStreamed) {
  if constexpr (kIsFloating<T>) {
    if (isMean) {
      reduceTwoSteps<SameStep<T, Op, true>>(dst, a, b, numLanes * sizeof(T), aheadA, aheadB, sizeof(T), isStreamed);
      return;
    }
  }
  reduceTwoSteps<SameStep<T, Op, false>>(dst, a, b, numLanes * sizeof(T), aheadA, aheadB, sizeof(T), isStreamed);
}

template <typename Type, typename Op>
void reduceTwoHalves(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t numLanes, std::int64_t aheadA,
                     std::int64_t aheadB, bool isMean, bool isStreamed) {
  if (isMean) {
    reduceTwoSteps<HalfStep<Type, Op, true>>(dst, a, b, numLanes * 2, aheadA, aheadB, 2, isStreamed);
  } else {
    reduceTwoSteps<HalfStep<Type, Op, false>>(dst, a, b, numLanes * 2, aheadA, aheadB, 2, isStreamed);
  }
}

}  // namespace
}  // namespace shardwire::internal::SW_KERNEL_ISA
