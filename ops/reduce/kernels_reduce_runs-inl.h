// Reductions of two to kMostRuns sources in one go, from load to (streamed) store: the common case, and the one where
// memory is the limit. Included by kernels.cc only. The same bits as combineTwo, combine and encode.
//
// A format says how a register of stored lanes becomes registers of accumulators, and back. The narrow types take the
// lanes of one 32 bit word apart by shifts and masks: the first accumulator has the first lane of each word, the next
// accumulator the next lane. No lane moves across a register, so the code is the same for all widths of registers.
//
// The destination is written line by line. Where the destination lies a little above a source modulo a page, a load of
// a later line seems to depend on a store just made, since CPUs first compare addresses within a page only. Such runs
// are walked from their end (isWalkedBackward()).
#pragma once

namespace shardwire::internal::SW_KERNEL_ISA {
namespace {

using Words = Vector<std::uint32_t>;
using SignedWords = Vector<std::int32_t>;

inline Words wordsOf(Vector<float> value) {
  return __builtin_bit_cast(Words, value);
}
inline Vector<float> floatsOf(Words words) {
  return __builtin_bit_cast(Vector<float>, words);
}
// Both are below 2^31, so that signed comparisons do, which all instruction sets have.
inline SignedWords isBelow(Words a, std::uint32_t b) {
  return __builtin_bit_cast(SignedWords, a) < static_cast<std::int32_t>(b);
}
inline SignedWords isAbove(Words a, std::uint32_t b) {
  return __builtin_bit_cast(SignedWords, a) > static_cast<std::int32_t>(b);
}

// ---- Formats

// Accumulators of the stored type.
template <typename T>
struct SameFormat {
  using Acc = T;
  static constexpr std::size_t kNumAccs = 1;
  static void load(Vector<T>* acc, const std::byte* stored) { acc[0] = loadVector<T>(stored); }
  template <bool kStream>
  static void store(std::byte* dst, const Vector<T>* acc) {
    Vector<T> value = acc[0];
    if constexpr (kIsFloating<T>) {
      const Vector<T> nan = Vector<T>{} + static_cast<T>(__builtin_nanf(""));
      value = value != value ? nan : value;
    }
    storeVector<kStream, T>(dst, value);
  }
};

// Formats of one word's lanes. Type::decode takes words whose uppermost bits are the lane, with any bits below;
// Type::encode gives words whose lowest bits are the lane, and whose other bits are 0.
template <typename Type>
struct SplitFormat {
  using Acc = float;
  static constexpr std::size_t kNumAccs = sizeof(float) / Type::kBytes;
  static constexpr int kBits = 8 * static_cast<int>(Type::kBytes);
  static void load(Vector<float>* acc, const std::byte* stored) {
    const Words words = loadVector<std::uint32_t>(stored);
    for (std::size_t i = 0; i < kNumAccs; ++i) {
      acc[i] = Type::decode(words << (32 - kBits * static_cast<int>(i + 1)));
    }
  }
  template <bool kStream>
  static void store(std::byte* dst, const Vector<float>* acc) {
    Words words = Type::encode(acc[0]);
    for (std::size_t i = 1; i < kNumAccs; ++i) {
      words |= Type::encode(acc[i]) << (kBits * static_cast<int>(i));
    }
    storeVector<kStream, std::uint32_t>(dst, words);
  }
};

struct WordsOfBFloat16 {
  static constexpr std::size_t kBytes = 2;
  static Vector<float> decode(Words words) { return floatsOf(words & 0xFFFF0000); }
  static Words encode(Vector<float> value) {
    const Words bits = wordsOf(value);
    const Words rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const Words nan = Words{} + 0x7FC0;
    return value != value ? nan : rounded;
  }
};

// As encodeLane().
template <typename Layout>
inline Words encodeWords(Vector<float> value) {
  constexpr unsigned kShift = 23 - Layout::kMantissaBits;
  constexpr std::uint32_t kMinNormal = (127 - Layout::kBias + 1) << 23;
  constexpr std::uint32_t kSubnormalAdd = ((127 - Layout::kBias) + kShift + 1) << 23;
  constexpr std::uint32_t kRound = (std::uint32_t{1} << (kShift - 1)) - 1 - (std::uint32_t{127 - Layout::kBias} << 23);
  const Words sign = wordsOf(value) & 0x80000000;
  const Words magnitude = wordsOf(value) & 0x7FFFFFFF;
  const Words subnormal = wordsOf(floatsOf(magnitude) + asFloat(kSubnormalAdd)) - kSubnormalAdd;
  const Words normal = (magnitude + kRound + ((magnitude >> kShift) & 1)) >> kShift;
  const Words overflow = Words{} + Layout::kOverflow, nan = Words{} + Layout::kNan;
  Words code = isBelow(magnitude, kMinNormal) ? subnormal : normal;
  code = (isBelow(magnitude, Layout::kOverflowFrom) & ~isAbove(code, Layout::kOverflow)) ? code : overflow;
  const Words stored = sign >> Layout::kSignShift;
  if constexpr (Layout::kHasNegativeZero) {
    code |= stored;
  } else {
    code = code == 0 ? code : (code | stored);
  }
  return isAbove(magnitude, kInfBits) ? nan : code;
}

struct WordsOfFloat16 {
  static constexpr std::size_t kBytes = 2;
  // As decodeFloat16().
  static Vector<float> decode(Words words) {
    const Words sign = words & 0x80000000, magnitude = words & 0x7FFF0000;
    const Vector<float> normal = floatsOf((magnitude >> 3) + (std::uint32_t{0xE0} << 23)) * 0x1.0p-112f;
    const Vector<float> subnormal = floatsOf((magnitude >> 16) | (std::uint32_t{126} << 23)) - 0.5f;
    return floatsOf(sign | (isBelow(magnitude, std::uint32_t{1} << 26) ? wordsOf(subnormal) : wordsOf(normal)));
  }
  static Words encode(Vector<float> value) { return encodeWords<Float16Layout>(value); }
};

template <typename Layout>
struct WordsOfFloat8 {
  static constexpr std::size_t kBytes = 1;
  // As decodeFloat8().
  static Vector<float> decode(Words words) {
    constexpr unsigned kShift = 23 - Layout::kMantissaBits;
    const Words magnitude = (words >> 24) & 0x7F;
    const Words sign = words & 0x80000000;
    const Words normal = (magnitude << kShift) + ((127 - Layout::kBias) << 23);
    // Of small integers this addition makes floats, which are then scaled.
    constexpr std::uint32_t kInteger = (127 - Layout::kBias + 1) << 23;  // the least normal value
    const Words subnormal = wordsOf(floatsOf((magnitude << kShift) | kInteger) - asFloat(kInteger));
    Words bits = isBelow(magnitude, 1u << Layout::kMantissaBits) ? subnormal : normal;
    const Words nan = Words{} + kNanBits;
    if constexpr (!Layout::kHasNegativeZero) {
      return floatsOf((words >> 24) == 0x80 ? nan : (bits | sign));
    } else if constexpr (Layout::kHasInfinity) {
      const Words infinity = Words{} + kInfBits;
      bits = isBelow(magnitude, Layout::kOverflow) ? bits : infinity;
      return floatsOf((isAbove(magnitude, Layout::kOverflow) ? nan : bits) | sign);
    } else {
      return floatsOf((magnitude == Layout::kNan ? nan : bits) | sign);
    }
  }
  static Words encode(Vector<float> value) { return encodeWords<Layout>(value); }
};

struct WordsOfE8M0 {
  static constexpr std::size_t kBytes = 1;
  static Vector<float> decode(Words words) {
    const Words bits = (words >> 24) << 23;
    const Words least = Words{} + 0x00400000, nan = Words{} + kNanBits;
    return floatsOf(bits == 0 ? least : (bits == kInfBits ? nan : bits));
  }
  static Words encode(Vector<float> value) {
    const Words magnitude = wordsOf(value) & 0x7FFFFFFF;
    // A tie goes up from a normal float and down from a subnormal one.
    const Words rounded = isAbove(magnitude, 0x7FFFFF) ? (magnitude + 0x400000) >> 23 : (magnitude + 0x3FFFFF) >> 23;
    const Words nan = Words{} + 0xFF;
    return isBelow(magnitude, kInfBits) ? rounded : nan;
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
#elif defined(SW_KERNEL_NEON)
  return __builtin_bit_cast(Half, vmovn_u32(__builtin_bit_cast(uint32x4_t, lanes)));
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
#elif defined(SW_KERNEL_NEON)
  return __builtin_bit_cast(Vector<std::uint32_t>, vmovl_u16(__builtin_bit_cast(uint16x4_t, lanes)));
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

#if defined(SW_KERNEL_CONVERTS_FLOAT16)
inline Vector<float> decodeHalf(Half stored, Float16) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(Vector<float>, _mm512_maskz_cvtph_ps(0xFFFF, __builtin_bit_cast(__m256i, stored)));
#elif defined(SW_KERNEL_NEON)
  return __builtin_bit_cast(Vector<float>, vcvt_f32_f16(__builtin_bit_cast(float16x4_t, stored)));
#else
  return __builtin_bit_cast(Vector<float>, _mm256_cvtph_ps(__builtin_bit_cast(__m128i, stored)));
#endif
}
inline Half encodeHalf(Vector<float> value, Float16) {
#if !defined(SW_KERNEL_NEON)
  constexpr int kRound = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#endif
  // Of this NaN the conversion makes the NaN of float16.
  const Vector<float> nan = Vector<float>{} + __builtin_nanf("");
  value = value != value ? nan : value;
#if defined(__AVX512F__)
  return __builtin_bit_cast(Half, _mm512_maskz_cvtps_ph(0xFFFF, __builtin_bit_cast(__m512, value), kRound));
#elif defined(SW_KERNEL_NEON)
  return __builtin_bit_cast(Half, vcvt_f16_f32(__builtin_bit_cast(float32x4_t, value)));
#else
  return __builtin_bit_cast(Half, _mm256_cvtps_ph(__builtin_bit_cast(__m256, value), kRound));
#endif
}

template <bool kStream>
inline void storeHalf(std::byte* dst, Half half) {
  if constexpr (!kStream) {
    __builtin_memcpy(dst, &half, sizeof(Half));
  } else {
#if defined(__AVX512F__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), __builtin_bit_cast(__m256i, half));
#elif defined(SW_KERNEL_NEON)
    __builtin_memcpy(dst, &half, sizeof(Half));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst), __builtin_bit_cast(__m128i, half));
#endif
  }
}

// The hardware's conversion: the first accumulator has the first half of the lanes.
struct HardwareFloat16 {
  using Acc = float;
  static constexpr std::size_t kNumAccs = 2;
  static void load(Vector<float>* acc, const std::byte* stored) {
    for (std::size_t i = 0; i < kNumAccs; ++i) {
      Half half;
      __builtin_memcpy(&half, stored + i * sizeof(half), sizeof(half));
      acc[i] = decodeHalf(half, Float16{});
    }
  }
  template <bool kStream>
  static void store(std::byte* dst, const Vector<float>* acc) {
    for (std::size_t i = 0; i < kNumAccs; ++i) {
      storeHalf<kStream>(dst + i * sizeof(Half), encodeHalf(acc[i], Float16{}));
    }
  }
};
using Float16Format = HardwareFloat16;
#else
using Float16Format = SplitFormat<WordsOfFloat16>;
#endif

// ---- Operations on accumulators

template <typename Format>
struct Accs {
  Vector<typename Format::Acc> of[Format::kNumAccs];
};

template <typename Format, typename Op>
inline void combineAccs(Accs<Format>& acc, const Accs<Format>& next) {
  for (std::size_t i = 0; i < Format::kNumAccs; ++i) {
    acc.of[i] = Op::of(acc.of[i], next.of[i]);
  }
}

// (a + bi)(c + di) of neighbouring lanes, by the plain formula. The shuffles take the real or the imaginary part
// twice, or exchange the two. A negated product is added, so that no instruction set subtracts otherwise.
struct ComplexProd {
  // Lane i of the result is lane (i | kSet) ^ kTurned.
  template <std::size_t kSet, std::size_t kTurned, typename V, std::size_t... kLane>
  static V shuffled(V a, std::index_sequence<kLane...>) {
    return __builtin_shufflevector(a, a, static_cast<int>((kLane | kSet) ^ kTurned)...);
  }

  template <typename V>
  static V of(V a, V b) {
    using Lane = std::remove_cvref_t<decltype(b[0])>;
    using Bits = std::conditional_t<sizeof(Lane) == 4, std::uint32_t, std::uint64_t>;
    constexpr std::size_t kNumLanes = kVectorBytes / sizeof(Lane);
    constexpr std::make_index_sequence<kNumLanes> kLanes{};
    Vector<Bits> negated;
    for (std::size_t i = 0; i < kNumLanes; ++i) {
      negated[i] = i % 2 == 0 ? Bits{1} << (8 * sizeof(Bits) - 1) : 0;
    }
    const V straight = shuffled<1, 1>(a, kLanes) * b;
    const V crossed = shuffled<1, 0>(a, kLanes) * shuffled<0, 1>(b, kLanes);
    return straight + __builtin_bit_cast(V, __builtin_bit_cast(Vector<Bits>, crossed) ^ negated);
  }
};

// A mean divides the sum. Floating point is multiplied where that gives the same bits: by a power of two. Integers
// truncate toward zero, and are divided by powers of two only.
template <typename T>
struct Mean {
  std::int64_t divisor;
  bool isPowerOfTwo;
  int shift;

  explicit Mean(std::int64_t by)
      : divisor(by), isPowerOfTwo((by & (by - 1)) == 0), shift(__builtin_ctzll(static_cast<unsigned long long>(by))) {}

  Vector<T> of(Vector<T> sum) const {
    if constexpr (kIsFloating<T>) {
      return isPowerOfTwo ? sum * (static_cast<T>(1) / static_cast<T>(divisor)) : sum / static_cast<T>(divisor);
    } else if constexpr (kIsSigned<T>) {
      const Vector<T> isNegative = __builtin_bit_cast(Vector<T>, sum < Vector<T>{});
      return (sum + (isNegative & static_cast<T>(divisor - 1))) >> shift;
    } else {
      return sum >> shift;
    }
  }
};

// ---- Runs

// kMean: T is the type that the sum is divided as, else unused.
template <typename Format, typename Op, bool kMean, typename T>
struct RunStep {
  static constexpr std::size_t kBytes = kVectorBytes;
  using Divided = Mean<T>;
  template <bool kStream>
  static void run(std::byte* dst, const std::byte* const* sources, std::size_t numSources, std::size_t at,
                  const Divided& mean) {
    Accs<Format> acc, next;
    Format::load(acc.of, sources[0] + at);
    Format::load(next.of, sources[1] + at);
    combineAccs<Format, Op>(acc, next);
    for (std::size_t i = 2; i < numSources; ++i) {
      Format::load(next.of, sources[i] + at);
      combineAccs<Format, Op>(acc, next);
    }
    if constexpr (kMean) {
      for (auto& value : acc.of) {
        value = __builtin_bit_cast(Vector<typename Format::Acc>, mean.of(__builtin_bit_cast(Vector<T>, value)));
      }
    }
    Format::template store<kStream>(dst + at, acc.of);
  }
};

// Whole lines. Each is read before it is written, so dst may be a source. kNumSources: as many as numSources, or 0 for
// any number. The pointers and the divisor are copied, since the compiler must assume that dst may lie upon all else.
template <typename Step, bool kStream, std::size_t kNumSources>
void reduceLines(std::byte* dst, const std::byte* const* from, std::size_t numSources, const std::int64_t* aheadOf,
                 std::size_t bytes) {
  constexpr std::size_t kMost = kNumSources != 0 ? kNumSources : kMostRuns;
  const std::byte* sources[kMost] = {};
  std::int64_t aheads[kMost] = {};
  numSources = kNumSources != 0 ? kNumSources : numSources;
  for (std::size_t i = 0; i < numSources; ++i) {
    sources[i] = from[i];
    aheads[i] = aheadOf[i];
  }
  const typename Step::Divided mean(static_cast<std::int64_t>(numSources));
  const bool isBackward = isWalkedBackward(dst, from, numSources);
  for (std::size_t done = 0; done < bytes; done += kLineBytes) {
    const std::size_t at = isBackward ? bytes - kLineBytes - done : done;
    for (std::size_t i = 0; i < numSources; ++i) {
      prefetchLine(sources[i] + at + aheads[i]);
    }
    for (std::size_t step = at; step < at + kLineBytes; step += Step::kBytes) {
      Step::template run<kStream>(dst, sources, numSources, step, mean);
    }
  }
}

constexpr std::size_t kShortRun = 256;

// Fewer than kMost bytes, by two moves that may overlap: a call of memcpy costs more than the reduction of some
// elements. At least one byte.
template <std::size_t kMost>
inline void copyFew(std::byte* to, const std::byte* from, std::size_t bytes) {
  if constexpr (kMost > 1) {
    constexpr std::size_t kPart = kMost / 2;
    if (bytes < kPart) {
      copyFew<kPart>(to, from, bytes);
      return;
    }
    struct Part {
      std::byte bytes[kPart];
    };
    const Part first = loadLane<Part>(from, 0), last = loadLane<Part>(from + bytes - kPart, 0);
    storeLane(to, 0, first);
    storeLane(to + bytes - kPart, 0, last);
  }
}

// Runs of any length at any place. The bytes behind the last whole step go through buffers.
template <typename Step>
__attribute__((noinline)) void reducePart(std::byte* dst, const std::byte* const* sources, std::size_t numSources,
                                          std::size_t from, std::size_t to) {
  const typename Step::Divided mean(static_cast<std::int64_t>(numSources));
  std::size_t at = from;
  for (; at + Step::kBytes <= to; at += Step::kBytes) {
    Step::template run<false>(dst, sources, numSources, at, mean);
  }
  if (at == to) {
    return;
  }
  alignas(kLineBytes) std::byte parts[kMostRuns + 1][Step::kBytes];
  const std::byte* places[kMostRuns] = {};
  for (std::size_t i = 0; i < numSources; ++i) {
    __builtin_memset(parts[i], 0, Step::kBytes);
    copyFew<Step::kBytes>(parts[i], sources[i] + at, to - at);
    places[i] = parts[i];
  }
  Step::template run<false>(parts[kMostRuns], places, numSources, 0, mean);
  copyFew<Step::kBytes>(dst + at, parts[kMostRuns], to - at);
}

// T: what a mean divides.
template <typename Format, typename Op, bool kMean, typename T, std::size_t kElemBytes>
void reduceRuns(std::byte* dst, const std::byte* const* sources, std::size_t numSources, const std::int64_t* aheads,
                std::size_t bytes, bool isStreamed) {
  using Step = RunStep<Format, Op, kMean, T>;
  const std::size_t misaligned = bytesToNextLine(dst);
  // In a short run, lines of dst in two parts cost less than a head and a tail. Where no line boundary is a boundary of
  // elements, there is no choice.
  if (bytes <= kShortRun || misaligned % kElemBytes != 0) {
    reducePart<Step>(dst, sources, numSources, 0, bytes);
    return;
  }
  const std::size_t head = misaligned < bytes ? misaligned : bytes, body = (bytes - head) / kLineBytes * kLineBytes;
  if (head != 0) {
    reducePart<Step>(dst, sources, numSources, 0, head);
  }
  const std::byte* places[kMostRuns] = {};
  for (std::size_t i = 0; i < numSources; ++i) {
    places[i] = sources[i] + head;
  }
  if (numSources == 2) {
    (isStreamed ? reduceLines<Step, true, 2> : reduceLines<Step, false, 2>)(dst + head, places, 2, aheads, body);
  } else {
    (isStreamed ? reduceLines<Step, true, 0> : reduceLines<Step, false, 0>)(dst + head, places, numSources, aheads,
                                                                            body);
  }
  if (head + body != bytes) {
    reducePart<Step>(dst, sources, numSources, head + body, bytes);
  }
}

}  // namespace
}  // namespace shardwire::internal::SW_KERNEL_ISA
