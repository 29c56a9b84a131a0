// Reduction loops over lanes. Included by kernels.cc only. Every loop is elementwise and strictly in source order, so neither the width of
// the registers nor the split into blocks changes a bit.
#pragma once

namespace shardwire::internal::SW_KERNEL_ISA {
namespace {

// Stored types whose accumulator is float, by how they are decoded and encoded.
struct Float16 {
  using Stored = std::uint16_t;
  static float decode(Stored stored) { return decodeFloat16(stored); }
  static Stored encode(float value) { return encodeLane<Float16Layout>(value); }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  static float decode(Stored stored) { return asFloat(std::uint32_t{stored} << 16); }
  static Stored encode(float value) { return encodeBFloat16(value); }
};
template <typename Layout>
struct Float8 {
  using Stored = std::uint8_t;
  static float decode(Stored stored) { return decodeFloat8<Layout>(stored); }
  static Stored encode(float value) { return encodeLane<Layout>(value); }
};
struct Float8E8M0 {
  using Stored = std::uint8_t;
  static float decode(Stored stored) { return decodeE8M0(stored); }
  static Stored encode(float value) { return encodeE8M0(value); }
};

template <typename T>
inline T loadLane(const void* lanes, std::size_t i) {
  T lane;
  __builtin_memcpy(&lane, static_cast<const std::byte*>(lanes) + i * sizeof(T), sizeof(T));
  return lane;
}
template <typename T>
inline void storeLane(std::byte* lanes, std::size_t i, T lane) {
  __builtin_memcpy(lanes + i * sizeof(T), &lane, sizeof(T));
}

// Fetching ahead is spread over the work, this many bytes of the source at a time. The loops below have their chunk loop in their own body:
// only there does the compiler still know that the pointers do not alias.
constexpr std::size_t kChunkBytes = 4 * kLineBytes;

inline void prefetchChunk(const void* chunk, std::int64_t ahead) {
  for (std::size_t i = 0; i < kChunkBytes; i += kLineBytes) {
    prefetchLine(static_cast<const std::byte*>(chunk) + i + ahead);
  }
}

template <typename T>
inline std::size_t endOfChunk(std::size_t first, std::size_t numLanes) {
  constexpr std::size_t kLanes = kChunkBytes / sizeof(T);
  return first + kLanes < numLanes ? first + kLanes : numLanes;
}

template <typename T>
inline const std::byte* laneAt(const void* lanes, std::size_t i) {
  return static_cast<const std::byte*>(lanes) + i * sizeof(T);
}

template <typename Type>
void decodeLanes(float* __restrict acc, const std::byte* __restrict stored, std::size_t numLanes, std::int64_t ahead) {
  using Stored = typename Type::Stored;
  for (std::size_t i = 0; i < numLanes;) {
    prefetchChunk(laneAt<Stored>(stored, i), ahead);
    for (const std::size_t end = endOfChunk<Stored>(i, numLanes); i < end; ++i) {
      acc[i] = Type::decode(loadLane<Stored>(stored, i));
    }
  }
}

template <typename Type>
void encodeLanes(std::byte* __restrict stored, const void* __restrict acc, std::size_t numLanes, std::int64_t divisor) {
  const float* lanes = static_cast<const float*>(acc);
  if (divisor != 0) {
    const float by = static_cast<float>(divisor);
    for (std::size_t i = 0; i < numLanes; ++i) {
      storeLane(stored, i, Type::encode(lanes[i] / by));
    }
    return;
  }
  for (std::size_t i = 0; i < numLanes; ++i) {
    storeLane(stored, i, Type::encode(lanes[i]));
  }
}

#if defined(__F16C__)
// The same bits as Float16::decode and encode, faster.
void decodeFloat16Lanes(float* __restrict acc, const std::byte* __restrict stored, std::size_t numLanes, std::int64_t ahead) {
  std::size_t i = 0;
  for (; i + 8 <= numLanes; i += 8) {
    if (i % 32 == 0) {
      prefetchLine(stored + 2 * i + ahead);
    }
    _mm256_storeu_ps(acc + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stored + 2 * i))));
  }
  for (; i < numLanes; ++i) {
    acc[i] = decodeFloat16(loadLane<std::uint16_t>(stored, i));
  }
}

void encodeFloat16Lanes(std::byte* __restrict stored, const void* __restrict acc, std::size_t numLanes, std::int64_t divisor) {
  const float* lanes = static_cast<const float*>(acc);
  // Dividing by 1 changes nothing.
  const float by = divisor != 0 ? static_cast<float>(divisor) : 1.0f;
  std::size_t i = 0;
  for (; i + 8 <= numLanes; i += 8) {
    const __m256 value = _mm256_div_ps(_mm256_loadu_ps(lanes + i), _mm256_set1_ps(by));
    const __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 isNan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m128i nanMask =
        _mm_packs_epi32(_mm_castps_si128(_mm256_castps256_ps128(isNan)), _mm_castps_si128(_mm256_extractf128_ps(isNan, 1)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(stored + 2 * i), _mm_blendv_epi8(half, _mm_set1_epi16(0x7E00), nanMask));
  }
  for (; i < numLanes; ++i) {
    storeLane(stored, i, encodeLane<Float16Layout>(lanes[i] / by));
  }
}
#endif

// Accumulator lanes that are stored as they are.
template <typename T>
constexpr bool kIsFloating = static_cast<T>(0.5) != static_cast<T>(0);
template <typename T>
constexpr bool kIsSigned = static_cast<T>(-1) < static_cast<T>(0);

template <typename T>
inline T finishLane(T value) {
  if constexpr (kIsFloating<T>) {
    return value != value ? static_cast<T>(__builtin_nanf("")) : value;
  } else {
    return value;
  }
}

template <typename T>
inline T divideLane(T value, std::int64_t divisor) {
  if constexpr (kIsFloating<T>) {
    return value / static_cast<T>(divisor);
  } else if constexpr (kIsSigned<T>) {
    return static_cast<T>(static_cast<std::int64_t>(value) / divisor);
  } else {
    return static_cast<T>(static_cast<std::uint64_t>(value) / static_cast<std::uint64_t>(divisor));
  }
}

template <typename T>
void encodeSame(std::byte* __restrict stored, const void* __restrict acc, std::size_t numLanes, std::int64_t divisor) {
  const T* lanes = static_cast<const T*>(acc);
  if (divisor != 0) {
    for (std::size_t i = 0; i < numLanes; ++i) {
      storeLane(stored, i, finishLane(divideLane(lanes[i], divisor)));
    }
    return;
  }
  for (std::size_t i = 0; i < numLanes; ++i) {
    storeLane(stored, i, finishLane(lanes[i]));
  }
}

// Operations on one lane, or on a vector of lanes. Integers come as unsigned where the sign does not matter, so that they wrap.
struct Sum {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Prod {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a * b);
  }
  // Two of these would be multiplied as signed int, and overflow.
  static std::uint16_t of(std::uint16_t a, std::uint16_t b) { return static_cast<std::uint16_t>(std::uint32_t{a} * b); }
};
// The first NaN wins; of equal values the later one stays.
struct Min {
  template <typename T>
  static T of(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};
struct Max {
  template <typename T>
  static T of(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};
struct And {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
// bool: any byte but 0 is true.
struct AllTrue {
  static std::uint8_t of(std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>((a != 0) & (b != 0)); }
};
struct AnyTrue {
  static std::uint8_t of(std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>((a | b) != 0); }
};
struct OddTrue {
  static std::uint8_t of(std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>((a != 0) ^ (b != 0)); }
};

template <typename T, typename Op>
void combineTwoLanes(void* __restrict acc, const void* __restrict a, const void* __restrict b, std::size_t numLanes, std::int64_t aheadA,
                     std::int64_t aheadB) {
  T* lanes = static_cast<T*>(acc);
  for (std::size_t i = 0; i < numLanes;) {
    prefetchChunk(laneAt<T>(a, i), aheadA);
    prefetchChunk(laneAt<T>(b, i), aheadB);
    for (const std::size_t end = endOfChunk<T>(i, numLanes); i < end; ++i) {
      lanes[i] = Op::of(loadLane<T>(a, i), loadLane<T>(b, i));
    }
  }
}

template <typename T, typename Op>
void combineLanes(void* __restrict acc, const void* __restrict b, std::size_t numLanes, std::int64_t ahead) {
  T* lanes = static_cast<T*>(acc);
  for (std::size_t i = 0; i < numLanes;) {
    prefetchChunk(laneAt<T>(b, i), ahead);
    for (const std::size_t end = endOfChunk<T>(i, numLanes); i < end; ++i) {
      lanes[i] = Op::of(lanes[i], loadLane<T>(b, i));
    }
  }
}

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

inline Vector<float> decodeHalf(Half stored, BFloat16) {
  return __builtin_bit_cast(Vector<float>, __builtin_convertvector(stored, Vector<std::uint32_t>) << 16);
}
inline Half encodeHalf(Vector<float> value, BFloat16) {
  const Vector<std::uint32_t> bits = __builtin_bit_cast(Vector<std::uint32_t>, value);
  const Vector<std::uint32_t> rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const Vector<std::uint32_t> nan = Vector<std::uint32_t>{} + 0x7FC0;
  return __builtin_convertvector((bits & 0x7FFFFFFF) > kInfBits ? nan : rounded, Half);
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
  const std::size_t half = numLines * kLineBytes <= kOneStreamBytes ? 0 : numLines / 2 * kLineBytes;
  for (std::size_t at = 0; at < half; at += kLineBytes) {
    line(at);
    line(half + at);
  }
  for (std::size_t at = 2 * half; at < numLines * kLineBytes; at += kLineBytes) {
    line(at);
  }
}

// What is no whole line of dst goes through buffers of one step. Lanes divide a step.
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
void reduceTwoSteps(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t bytes, std::int64_t aheadA, std::int64_t aheadB,
                    std::size_t laneBytes, bool isStreamed) {
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
void reduceTwo(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t numLanes, std::int64_t aheadA, std::int64_t aheadB,
               bool isMean, bool isStreamed) {
  if constexpr (kIsFloating<T>) {
    if (isMean) {
      reduceTwoSteps<SameStep<T, Op, true>>(dst, a, b, numLanes * sizeof(T), aheadA, aheadB, sizeof(T), isStreamed);
      return;
    }
  }
  reduceTwoSteps<SameStep<T, Op, false>>(dst, a, b, numLanes * sizeof(T), aheadA, aheadB, sizeof(T), isStreamed);
}

template <typename Type, typename Op>
void reduceTwoHalves(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t numLanes, std::int64_t aheadA, std::int64_t aheadB,
                     bool isMean, bool isStreamed) {
  if (isMean) {
    reduceTwoSteps<HalfStep<Type, Op, true>>(dst, a, b, numLanes * 2, aheadA, aheadB, 2, isStreamed);
  } else {
    reduceTwoSteps<HalfStep<Type, Op, false>>(dst, a, b, numLanes * 2, aheadA, aheadB, 2, isStreamed);
  }
}

// (a + bi)(c + di), the plain formula, over n products. Real and imaginary parts are taken apart first: from the plain loop GCC 12 makes
// fused multiply-adds whatever -ffp-contract says (its complex multiplication pattern).
template <typename T, std::size_t n>
inline void multiplyComplexLanes(T* acc, const void* a, const void* b) {
  T aRe[n], aIm[n], bRe[n], bIm[n], re[n], im[n];
  for (std::size_t i = 0; i < n; ++i) {
    aRe[i] = loadLane<T>(a, 2 * i);
    aIm[i] = loadLane<T>(a, 2 * i + 1);
    bRe[i] = loadLane<T>(b, 2 * i);
    bIm[i] = loadLane<T>(b, 2 * i + 1);
  }
  for (std::size_t i = 0; i < n; ++i) {
    re[i] = aRe[i] * bRe[i] - aIm[i] * bIm[i];
  }
  for (std::size_t i = 0; i < n; ++i) {
    im[i] = aRe[i] * bIm[i] + aIm[i] * bRe[i];
  }
  for (std::size_t i = 0; i < n; ++i) {
    acc[2 * i] = re[i];
    acc[2 * i + 1] = im[i];
  }
}

template <typename T>
void multiplyComplexTwo(void* acc, const void* a, const void* b, std::size_t numLanes, std::int64_t aheadA, std::int64_t aheadB) {
  constexpr std::size_t kLanes = kChunkBytes / sizeof(T);
  T* lanes = static_cast<T*>(acc);
  std::size_t i = 0;
  for (; i + kLanes <= numLanes; i += kLanes) {
    prefetchChunk(laneAt<T>(a, i), aheadA);
    prefetchChunk(laneAt<T>(b, i), aheadB);
    multiplyComplexLanes<T, kLanes / 2>(lanes + i, laneAt<T>(a, i), laneAt<T>(b, i));
  }
  if (i < numLanes) {
    // The rest, in the same shape: a loop over single products would be fused as well.
    T restA[kLanes] = {}, restB[kLanes] = {}, rest[kLanes];
    const std::size_t restBytes = (numLanes - i) * sizeof(T);
    __builtin_memcpy(restA, laneAt<T>(a, i), restBytes);
    __builtin_memcpy(restB, laneAt<T>(b, i), restBytes);
    multiplyComplexLanes<T, kLanes / 2>(rest, restA, restB);
    __builtin_memcpy(lanes + i, rest, restBytes);
  }
}

template <typename T>
void multiplyComplex(void* acc, const void* b, std::size_t numLanes, std::int64_t ahead) {
  multiplyComplexTwo<T>(acc, acc, b, numLanes, 0, ahead);
}

// The table. Rows are filled per dtype; a row of ReduceKernels is indexed by ReduceOp.
constexpr int index(ReduceOp op) {
  return static_cast<int>(op);
}

template <typename T, typename Op>
constexpr void setOp(ReduceKernel* row, ReduceOp op, const ReduceKernel& common) {
  row[index(op)] = common;
  row[index(op)].combineTwo = combineTwoLanes<T, Op>;
  row[index(op)].combine = combineLanes<T, Op>;
  if constexpr (requires(Vector<T> v) { Op::of(v, v); }) {
    const bool isStoredAsIs = common.storedBytes == common.accBytes;
    const bool dividesWhole = op == ReduceOp::kMean && !kIsFloating<T>;
    if (isStoredAsIs && !dividesWhole) {
      row[index(op)].reduceTwo = reduceTwo<T, Op>;
    }
  }
}

template <typename T>
constexpr void setFloating(ReduceKernel* row, const ReduceKernel& common) {
  setOp<T, Sum>(row, ReduceOp::kSum, common);
  setOp<T, Sum>(row, ReduceOp::kMean, common);
  setOp<T, Prod>(row, ReduceOp::kProd, common);
  setOp<T, Min>(row, ReduceOp::kMin, common);
  setOp<T, Max>(row, ReduceOp::kMax, common);
}

// 16 bit lanes get the fused form for two sources as well.
template <typename Type>
constexpr void setHalves(ReduceKernel* row, bool isReal) {
  row[index(ReduceOp::kSum)].reduceTwo = reduceTwoHalves<Type, Sum>;
  row[index(ReduceOp::kMean)].reduceTwo = reduceTwoHalves<Type, Sum>;
  if (isReal) {
    row[index(ReduceOp::kProd)].reduceTwo = reduceTwoHalves<Type, Prod>;
    row[index(ReduceOp::kMin)].reduceTwo = reduceTwoHalves<Type, Min>;
    row[index(ReduceOp::kMax)].reduceTwo = reduceTwoHalves<Type, Max>;
  }
}

template <typename T>
constexpr void setComplex(ReduceKernel* row, ReduceKernel common) {
  common.lanesPerElem = 2;
  setOp<T, Sum>(row, ReduceOp::kSum, common);
  setOp<T, Sum>(row, ReduceOp::kMean, common);
  row[index(ReduceOp::kProd)] = common;
  row[index(ReduceOp::kProd)].combineTwo = multiplyComplexTwo<T>;
  row[index(ReduceOp::kProd)].combine = multiplyComplex<T>;
}

template <typename T>
constexpr ReduceKernel sameKernel() {
  ReduceKernel kernel;
  kernel.encode = encodeSame<T>;
  kernel.storedBytes = sizeof(T);
  kernel.accBytes = sizeof(T);
  return kernel;
}

template <typename Type>
constexpr ReduceKernel floatKernel() {
  ReduceKernel kernel;
  kernel.decode = decodeLanes<Type>;
  kernel.encode = encodeLanes<Type>;
  kernel.storedBytes = sizeof(typename Type::Stored);
  kernel.accBytes = sizeof(float);
  return kernel;
}

constexpr ReduceKernel float16Kernel() {
  ReduceKernel kernel = floatKernel<Float16>();
#if defined(__F16C__)
  kernel.decode = decodeFloat16Lanes;
  kernel.encode = encodeFloat16Lanes;
#endif
  return kernel;
}

// Bits: the unsigned type of T's size, for what is the same with and without a sign.
template <typename T, typename Bits>
constexpr void setInteger(ReduceKernel* row) {
  const ReduceKernel common = sameKernel<T>();
  setOp<Bits, Sum>(row, ReduceOp::kSum, common);
  setOp<Bits, Sum>(row, ReduceOp::kMean, common);
  setOp<Bits, Prod>(row, ReduceOp::kProd, common);
  setOp<T, Min>(row, ReduceOp::kMin, common);
  setOp<T, Max>(row, ReduceOp::kMax, common);
  setOp<Bits, And>(row, ReduceOp::kBand, common);
  setOp<Bits, Or>(row, ReduceOp::kBor, common);
  setOp<Bits, Xor>(row, ReduceOp::kBxor, common);
}

// mean counts the true inputs and divides like an integer: true only where all are.
constexpr void setBool(ReduceKernel* row) {
  const ReduceKernel common = sameKernel<std::uint8_t>();
  setOp<std::uint8_t, AnyTrue>(row, ReduceOp::kSum, common);
  setOp<std::uint8_t, AllTrue>(row, ReduceOp::kProd, common);
  setOp<std::uint8_t, AllTrue>(row, ReduceOp::kMin, common);
  setOp<std::uint8_t, AnyTrue>(row, ReduceOp::kMax, common);
  setOp<std::uint8_t, AllTrue>(row, ReduceOp::kMean, common);
  setOp<std::uint8_t, AllTrue>(row, ReduceOp::kBand, common);
  setOp<std::uint8_t, AnyTrue>(row, ReduceOp::kBor, common);
  setOp<std::uint8_t, OddTrue>(row, ReduceOp::kBxor, common);
}

constexpr KernelTable makeTable(const char* name) {
  KernelTable table{name, copyRows, streamOut, fence, {}};
  const auto row = [&table](DType dtype) { return table.reduce[static_cast<int>(dtype)]; };
  setBool(row(DType::kBool));
  setInteger<std::uint8_t, std::uint8_t>(row(DType::kUInt8));
  setInteger<std::int8_t, std::uint8_t>(row(DType::kInt8));
  setInteger<std::int16_t, std::uint16_t>(row(DType::kInt16));
  setInteger<std::int32_t, std::uint32_t>(row(DType::kInt32));
  setInteger<std::int64_t, std::uint64_t>(row(DType::kInt64));
  setInteger<std::uint16_t, std::uint16_t>(row(DType::kUInt16));
  setInteger<std::uint32_t, std::uint32_t>(row(DType::kUInt32));
  setInteger<std::uint64_t, std::uint64_t>(row(DType::kUInt64));
  setFloating<float>(row(DType::kFloat16), float16Kernel());
  setFloating<float>(row(DType::kBFloat16), floatKernel<BFloat16>());
  setFloating<float>(row(DType::kFloat32), sameKernel<float>());
  setFloating<double>(row(DType::kFloat64), sameKernel<double>());
  setComplex<float>(row(DType::kComplex32), float16Kernel());
  setComplex<float>(row(DType::kComplex64), sameKernel<float>());
  setComplex<double>(row(DType::kComplex128), sameKernel<double>());
  setHalves<BFloat16>(row(DType::kBFloat16), true);
#if defined(__F16C__)
  setHalves<Float16>(row(DType::kFloat16), true);
  setHalves<Float16>(row(DType::kComplex32), false);
#endif
  setFloating<float>(row(DType::kFloat8E4M3FN), floatKernel<Float8<Float8E4M3FNLayout>>());
  setFloating<float>(row(DType::kFloat8E5M2), floatKernel<Float8<Float8E5M2Layout>>());
  setFloating<float>(row(DType::kFloat8E4M3FNUZ), floatKernel<Float8<Float8E4M3FNUZLayout>>());
  setFloating<float>(row(DType::kFloat8E5M2FNUZ), floatKernel<Float8<Float8E5M2FNUZLayout>>());
  setFloating<float>(row(DType::kFloat8E8M0FNU), floatKernel<Float8E8M0>());
  return table;
}

}  // namespace
}  // namespace shardwire::internal::SW_KERNEL_ISA
