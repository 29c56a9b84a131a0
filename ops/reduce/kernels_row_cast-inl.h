// Casts between the floating types, as torch's `.to` does them. Included by kernels.cc only. Every value is converted
// by way of float (directly from and to double where the other side is float), is rounded to nearest even, and has the
// same bits on every CPU.
//
// NaN stays NaN, with torch's bits. The wider types keep the sign and as much of the payload as fits. The NaN of
// bfloat16 is 0x7FC0. The 8-bit types have one NaN, with a sign where the type has signs. Where torch's own loops
// differ (0xFFFF in long rows of bfloat16), these are the bits of torch's plain loop.
#pragma once

namespace shardwire::internal::SW_KERNEL_ISA {
namespace {

inline bool isNanBits(std::uint32_t bits) {
  return (bits & 0x7FFFFFFF) > kInfBits;
}

inline std::uint16_t castToFloat16(float value) {
  const std::uint32_t bits = asBits(value);
  const std::uint32_t nan = ((bits >> 16) & 0x8000) | 0x7E00 | ((bits >> 13) & 0x3FF);
  return static_cast<std::uint16_t>(isNanBits(bits) ? nan : encodeLane<Float16Layout>(value));
}

// Stored types as casts see them: load() gives float or double, store() takes either.
struct CastFloat16 {
  static constexpr DType kDType = DType::kFloat16;
  using Stored = std::uint16_t;
  static float load(Stored stored) { return decodeFloat16(stored); }
  static Stored store(float value) { return castToFloat16(value); }
};
struct CastBFloat16 {
  static constexpr DType kDType = DType::kBFloat16;
  using Stored = std::uint16_t;
  static float load(Stored stored) { return asFloat(std::uint32_t{stored} << 16); }
  static Stored store(float value) { return encodeBFloat16(value); }
};
struct CastFloat32 {
  static constexpr DType kDType = DType::kFloat32;
  using Stored = float;
  static float load(Stored stored) { return stored; }
  static Stored store(float value) { return value; }
};
struct CastFloat64 {
  static constexpr DType kDType = DType::kFloat64;
  using Stored = double;
  static float load(Stored stored) { return static_cast<float>(stored); }
  static Stored store(float value) { return static_cast<double>(value); }
};
template <typename Layout, DType dtype>
struct CastFloat8 {
  static constexpr DType kDType = dtype;
  using Stored = std::uint8_t;
  static float load(Stored stored) {
    if constexpr (Layout::kHasInfinity) {
      return decodeFloat16(static_cast<std::uint16_t>(std::uint32_t{stored} << 8));  // the upper half of a float16
    }
    const std::uint32_t bits = asBits(decodeFloat8<Layout>(stored));
    const std::uint32_t nan = Layout::kHasNegativeZero ? (bits & 0x80000000) | 0x7FF00000 : 0x7F800001;
    return asFloat(isNanBits(bits) ? nan : bits);
  }
  static Stored store(float value) {
    const std::uint32_t sign = Layout::kHasNegativeZero ? (asBits(value) >> 24) & 0x80 : 0;
    return static_cast<Stored>(encodeLane<Layout>(value) | (isNanBits(asBits(value)) ? sign : 0));
  }
};
using CastFloat8E4M3FN = CastFloat8<Float8E4M3FNLayout, DType::kFloat8E4M3FN>;
using CastFloat8E5M2 = CastFloat8<Float8E5M2Layout, DType::kFloat8E5M2>;
using CastFloat8E4M3FNUZ = CastFloat8<Float8E4M3FNUZLayout, DType::kFloat8E4M3FNUZ>;
using CastFloat8E5M2FNUZ = CastFloat8<Float8E5M2FNUZLayout, DType::kFloat8E5M2FNUZ>;
struct CastFloat8E8M0 {
  static constexpr DType kDType = DType::kFloat8E8M0FNU;
  using Stored = std::uint8_t;
  static float load(Stored stored) { return stored == 0xFF ? asFloat(0x7F800001) : decodeE8M0(stored); }
  static Stored store(float value) { return encodeE8M0(value); }
};

template <typename From, typename To>
void castLanesOneByOne(std::byte* __restrict dst, const std::byte* __restrict src, std::size_t first,
                       std::size_t numLanes) {
  for (std::size_t i = first; i < numLanes; ++i) {
    storeLane(dst, i, To::store(From::load(loadLane<typename From::Stored>(src, i))));
  }
}

#if defined(SW_KERNEL_CONVERTS_FLOAT16)
// float32 and the 16 bit types, a register at a time.
template <typename Type>
inline Vector<float> loadHalves(const std::byte* src) {
  Half halves;
  __builtin_memcpy(&halves, src, sizeof(Half));
  if constexpr (Type::kDType == DType::kBFloat16) {
    return decodeHalf(halves, BFloat16{});
  } else {
    return decodeHalf(halves, Float16{});
  }
}
template <typename Type>
inline Half halvesOf(Vector<float> value) {
  if constexpr (Type::kDType == DType::kBFloat16) {
    return encodeHalf(value, BFloat16{});
  } else {
#if defined(SW_KERNEL_NEON)
    return __builtin_bit_cast(Half, vcvt_f16_f32(__builtin_bit_cast(float32x4_t, value)));
#else
    constexpr int kRound = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#if defined(__AVX512F__)
    return __builtin_bit_cast(Half, _mm512_maskz_cvtps_ph(0xFFFF, __builtin_bit_cast(__m512, value), kRound));
#else
    return __builtin_bit_cast(Half, _mm256_cvtps_ph(__builtin_bit_cast(__m256, value), kRound));
#endif
#endif
  }
}
template <typename Type>
constexpr bool kIsHalf = Type::kDType == DType::kFloat16 || Type::kDType == DType::kBFloat16;
#endif

template <typename From, typename To>
void castLanes(std::byte* __restrict dst, const std::byte* __restrict src, std::size_t numLanes) {
  std::size_t i = 0;
#if defined(SW_KERNEL_CONVERTS_FLOAT16)
  constexpr std::size_t kLanes = kVectorBytes / sizeof(float);
  constexpr bool kIsFloat = From::kDType == DType::kFloat32 || To::kDType == DType::kFloat32;
  if constexpr (kIsHalf<From> && (kIsFloat || kIsHalf<To>)) {
    for (; i + kLanes <= numLanes; i += kLanes) {
      const Vector<float> value = loadHalves<From>(src + 2 * i);
      if constexpr (kIsHalf<To>) {
        const Half halves = halvesOf<To>(value);
        __builtin_memcpy(dst + 2 * i, &halves, sizeof(halves));
      } else {
        __builtin_memcpy(dst + 4 * i, &value, sizeof(value));
      }
    }
  } else if constexpr (kIsHalf<To> && kIsFloat) {
    for (; i + kLanes <= numLanes; i += kLanes) {
      const Half halves = halvesOf<To>(loadVector<float>(src + 4 * i));
      __builtin_memcpy(dst + 2 * i, &halves, sizeof(halves));
    }
  }
#endif
  castLanesOneByOne<From, To>(dst, src, i, numLanes);
}

// Bytes of the destination that are cast between two prefetches.
constexpr std::size_t kCastBytes = 256;

// One row. As copyRow() does it: two streams, the source fetched ahead into L2, and the destination, if asked, written
// past the cache.
struct RowCaster {
  CastLanes cast;
  std::size_t dstLaneBytes;
  std::size_t srcLaneBytes;

  template <bool kStream>
  void piece(std::byte* dst, const std::byte* src, std::int64_t ahead) const {
    const std::size_t numLanes = kCastBytes / dstLaneBytes;
    for (std::size_t at = 0; at < numLanes * srcLaneBytes; at += kLineBytes) {
      prefetchLine(src + at + ahead);
    }
    if constexpr (kStream) {
      alignas(kLineBytes) std::byte buffer[kCastBytes];
      cast(buffer, src, numLanes);
      for (std::size_t at = 0; at < kCastBytes; at += kLineBytes) {
        copyLine<true>(dst + at, buffer + at);
      }
    } else {
      cast(dst, src, numLanes);
    }
  }

  // nextRow: distance in the source from here to a row that will be needed about kAheadBytes later.
  template <bool kStream, bool kPair>
  void row(std::byte* dst, const std::byte* src, std::size_t numLanes, std::int64_t nextRow) const {
    const std::size_t misaligned = bytesToNextLine(dst);
    const std::size_t headLanes = misaligned / dstLaneBytes;
    if (misaligned % dstLaneBytes != 0 || headLanes >= numLanes) {  // then no line boundary is a lane boundary
      cast(dst, src, numLanes);
      return;
    }
    cast(dst, src, headLanes);
    dst += headLanes * dstLaneBytes, src += headLanes * srcLaneBytes, numLanes -= headLanes;
    const std::size_t pieceLanes = kCastBytes / dstLaneBytes, pieceBytes = pieceLanes * srcLaneBytes;
    const std::size_t numPieces = numLanes / pieceLanes;
    // Stretches of two halves, each of which fetches the same half of the next.
    const std::size_t stretchPieces = 2 * kAheadBytes / pieceBytes < 2 ? 2 : 2 * kAheadBytes / pieceBytes;
    std::size_t done = 0;
    while (done < numPieces) {
      const std::size_t left = numPieces - done;
      const std::size_t now = left < 2 * stretchPieces ? left : stretchPieces;
      const bool isLast = now == left;
      const std::int64_t ahead =
          isLast ? nextRow - static_cast<std::int64_t>(done * pieceBytes) : static_cast<std::int64_t>(now * pieceBytes);
      const std::size_t half = kPair ? now / 2 : 0;
      for (std::size_t i = 0; i < half; ++i) {
        piece<kStream>(dst + i * kCastBytes, src + i * pieceBytes, ahead);
        piece<kStream>(dst + (half + i) * kCastBytes, src + (half + i) * pieceBytes, ahead);
      }
      for (std::size_t i = 2 * half; i < now; ++i) {
        piece<kStream>(dst + i * kCastBytes, src + i * pieceBytes, ahead);
      }
      dst += now * kCastBytes, src += now * pieceBytes, done += now;
    }
    cast(dst, src, numLanes - numPieces * pieceLanes);
  }
};

void castRows(CastLanes cast, std::byte* dst, std::int64_t dstStride, std::size_t dstLaneBytes, const std::byte* src,
              std::int64_t srcStride, std::size_t srcLaneBytes, std::size_t rowLanes, std::size_t numRows,
              RowStore store) {
  const RowCaster caster{cast, dstLaneBytes, srcLaneBytes};
  const std::size_t rowBytes = rowLanes * srcLaneBytes;
  const std::size_t rowsAhead = rowBytes >= kAheadBytes ? 1 : (kAheadBytes + rowBytes - 1) / rowBytes;
  const std::int64_t nextRow = static_cast<std::int64_t>(rowsAhead) * srcStride;
  for (std::size_t row = 0; row < numRows; ++row) {
    if (store == RowStore::kStreamPair) {
      caster.row<true, true>(dst, src, rowLanes, nextRow);
    } else if (store == RowStore::kStream) {
      caster.row<true, false>(dst, src, rowLanes, nextRow);
    } else if (store == RowStore::kAhead) {
      caster.row<false, true>(dst, src, rowLanes, nextRow);
    } else {
      cast(dst, src, rowLanes);
    }
    dst += dstStride;
    src += srcStride;
  }
}

}  // namespace
}  // namespace shardwire::internal::SW_KERNEL_ISA
