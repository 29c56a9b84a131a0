// Reduction loops over lanes. Included by kernels.cc only. Every loop is elementwise and strictly in source order, so
// neither the width of the registers nor the split into blocks changes a bit.
#pragma once

namespace shardwire::internal::SW_KERNEL_ISA {
namespace {

// Stored types with a float accumulator, and how they are decoded and encoded.
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

// Prefetches are spread over the work, this many bytes of the source at a time. The loops below contain their chunk
// loop in their own body: only there does the compiler still know that the pointers do not alias.
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

inline void addScaled(float* __restrict acc, const void* __restrict lanes, float factor, std::size_t numLanes,
                      bool adds) {
  if (adds) {
    for (std::size_t i = 0; i < numLanes; ++i) {
      acc[i] += factor * loadLane<float>(lanes, i);
    }
    return;
  }
  for (std::size_t i = 0; i < numLanes; ++i) {
    acc[i] = factor * loadLane<float>(lanes, i);
  }
}

#if defined(__F16C__)
// The same bits as Float16::decode and encode, faster.
void decodeFloat16Lanes(float* __restrict acc, const std::byte* __restrict stored, std::size_t numLanes,
                        std::int64_t ahead) {
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

void encodeFloat16Lanes(std::byte* __restrict stored, const void* __restrict acc, std::size_t numLanes,
                        std::int64_t divisor) {
  const float* lanes = static_cast<const float*>(acc);
  // Dividing by 1 changes nothing.
  const float by = divisor != 0 ? static_cast<float>(divisor) : 1.0f;
  std::size_t i = 0;
  for (; i + 8 <= numLanes; i += 8) {
    const __m256 value = _mm256_div_ps(_mm256_loadu_ps(lanes + i), _mm256_set1_ps(by));
    const __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 isNan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m128i nanMask = _mm_packs_epi32(_mm_castps_si128(_mm256_castps256_ps128(isNan)),
                                            _mm_castps_si128(_mm256_extractf128_ps(isNan, 1)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(stored + 2 * i),
                     _mm_blendv_epi8(half, _mm_set1_epi16(0x7E00), nanMask));
  }
  for (; i < numLanes; ++i) {
    storeLane(stored, i, encodeLane<Float16Layout>(lanes[i] / by));
  }
}
#elif defined(SW_KERNEL_NEON)
// The same bits as Float16::decode and encode, faster.
void decodeFloat16Lanes(float* __restrict acc, const std::byte* __restrict stored, std::size_t numLanes,
                        std::int64_t ahead) {
  std::size_t i = 0;
  for (; i + 8 <= numLanes; i += 8) {
    if (i % 32 == 0) {
      prefetchLine(stored + 2 * i + ahead);
    }
    float16x8_t half;
    __builtin_memcpy(&half, stored + 2 * i, sizeof(half));
    vst1q_f32(acc + i, vcvt_f32_f16(vget_low_f16(half)));
    vst1q_f32(acc + i + 4, vcvt_high_f32_f16(half));
  }
  for (; i < numLanes; ++i) {
    acc[i] = decodeFloat16(loadLane<std::uint16_t>(stored, i));
  }
}

void encodeFloat16Lanes(std::byte* __restrict stored, const void* __restrict acc, std::size_t numLanes,
                        std::int64_t divisor) {
  const float* lanes = static_cast<const float*>(acc);
  // Dividing by 1 changes nothing.
  const float32x4_t by = vdupq_n_f32(divisor != 0 ? static_cast<float>(divisor) : 1.0f);
  // Of this NaN the conversion makes the NaN of float16.
  const float32x4_t nan = vdupq_n_f32(__builtin_nanf(""));
  const auto quotient = [=](std::size_t i) {
    const float32x4_t value = vdivq_f32(vld1q_f32(lanes + i), by);
    return vbslq_f32(vceqq_f32(value, value), value, nan);
  };
  std::size_t i = 0;
  for (; i + 8 <= numLanes; i += 8) {
    const float16x8_t half = vcvt_high_f16_f32(vcvt_f16_f32(quotient(i)), quotient(i + 4));
    __builtin_memcpy(stored + 2 * i, &half, sizeof(half));
  }
  for (; i < numLanes; ++i) {
    storeLane(stored, i, encodeLane<Float16Layout>(lanes[i] / by[0]));
  }
}
#endif

// Accumulator lanes of the stored type.
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

// The quotients of integers as truncated quotients of the next floating type are exact: the distance of a quotient x /
// d from the integer above is at least 1 / x of the integer, far above half a unit of float (x < 2^16) or double (x <
// 2^32).
template <typename T>
inline T divideLane(T value, std::int64_t divisor) {
  if constexpr (kIsFloating<T>) {
    return value / static_cast<T>(divisor);
  } else if constexpr (sizeof(T) <= 2) {
    return static_cast<T>(static_cast<float>(value) / static_cast<float>(divisor));
  } else if constexpr (sizeof(T) == 4) {
    return static_cast<T>(static_cast<double>(value) / static_cast<double>(divisor));
  } else if constexpr (kIsSigned<T>) {
    return value / divisor;
  } else {
    return value / static_cast<std::uint64_t>(divisor);
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

// a where that is less (greater) than b, else b: one instruction, which compilers do not find in vectors.
#if defined(__AVX512F__)  // GCC 12 warns of the forms without a mask
#define SW_REGISTER(operation, type, a, b) _mm512_maskz_##operation##_##type(kAllLanes, a, b)
#elif defined(__AVX2__)
#define SW_REGISTER(operation, type, a, b) _mm256_##operation##_##type(a, b)
#elif defined(__SSE2__)
#define SW_REGISTER(operation, type, a, b) _mm_##operation##_##type(a, b)
#else
#define SW_REGISTER(operation, type, a, b) operation##Lanes(a, b)
template <typename V>
inline V minLanes(V a, V b) {
  return a < b ? a : b;
}
template <typename V>
inline V maxLanes(V a, V b) {
  return a > b ? a : b;
}
#endif
inline Vector<float> leastOf(Vector<float> a, Vector<float> b) {
  [[maybe_unused]] constexpr std::uint16_t kAllLanes = 0xFFFF;
  return SW_REGISTER(min, ps, a, b);
}
inline Vector<double> leastOf(Vector<double> a, Vector<double> b) {
  [[maybe_unused]] constexpr std::uint8_t kAllLanes = 0xFF;
  return SW_REGISTER(min, pd, a, b);
}
inline Vector<float> greatestOf(Vector<float> a, Vector<float> b) {
  [[maybe_unused]] constexpr std::uint16_t kAllLanes = 0xFFFF;
  return SW_REGISTER(max, ps, a, b);
}
inline Vector<double> greatestOf(Vector<double> a, Vector<double> b) {
  [[maybe_unused]] constexpr std::uint8_t kAllLanes = 0xFF;
  return SW_REGISTER(max, pd, a, b);
}
#undef SW_REGISTER

// `value`, or some NaN where a is NaN: a comparison's lanes are all ones, which is a NaN.
template <typename V>
inline V nanAsIn(V a, V value) {
#if defined(__AVX512F__)
  return a != a ? a : value;
#else
  using Bits = decltype(a != a);
  return __builtin_bit_cast(V, __builtin_bit_cast(Bits, value) | (a != a));
#endif
}

// Operations on one lane, or on a vector of lanes. Where the sign does not matter, integers are passed as unsigned, so
// that overflow wraps.
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
  static Vector<float> of(Vector<float> a, Vector<float> b) { return nanAsIn(a, leastOf(a, b)); }
  static Vector<double> of(Vector<double> a, Vector<double> b) { return nanAsIn(a, leastOf(a, b)); }
};
struct Max {
  template <typename T>
  static T of(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
  static Vector<float> of(Vector<float> a, Vector<float> b) { return nanAsIn(a, greatestOf(a, b)); }
  static Vector<double> of(Vector<double> a, Vector<double> b) { return nanAsIn(a, greatestOf(a, b)); }
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
  static Vector<std::uint8_t> of(Vector<std::uint8_t> a, Vector<std::uint8_t> b) {
    return __builtin_bit_cast(Vector<std::uint8_t>, ((a != 0) & (b != 0))) & 1;
  }
};
struct AnyTrue {
  static std::uint8_t of(std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>((a | b) != 0); }
  static Vector<std::uint8_t> of(Vector<std::uint8_t> a, Vector<std::uint8_t> b) {
    return __builtin_bit_cast(Vector<std::uint8_t>, ((a | b) != 0)) & 1;
  }
};
struct OddTrue {
  static std::uint8_t of(std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>((a != 0) ^ (b != 0)); }
  static Vector<std::uint8_t> of(Vector<std::uint8_t> a, Vector<std::uint8_t> b) {
    return __builtin_bit_cast(Vector<std::uint8_t>, ((a != 0) ^ (b != 0))) & 1;
  }
};

template <typename T, typename Op>
void combineTwoLanes(void* __restrict acc, const void* __restrict a, const void* __restrict b, std::size_t numLanes,
                     std::int64_t aheadA, std::int64_t aheadB) {
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

// (a + bi)(c + di) by the plain formula, over n products. Real and imaginary parts are separated first: from the plain
// loop GCC 12 makes fused multiply-adds whatever -ffp-contract says (its complex multiplication pattern).
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
void multiplyComplexTwo(void* acc, const void* a, const void* b, std::size_t numLanes, std::int64_t aheadA,
                        std::int64_t aheadB) {
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

}  // namespace
}  // namespace shardwire::internal::SW_KERNEL_ISA
