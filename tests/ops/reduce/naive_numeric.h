// An independent, slow and plain implementation of what reduce_box.h promises, one element at a time. For tests only;
// header only.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "shardwire/types.h"

namespace shardwire::internal {

// A small floating type: how many mantissa bits, the bias, and the codes at the top.
struct NaiveFormat {
  int mantissaBits;
  int exponentBits;
  int bias;
  enum class Top { kIeee, kOnlyAllOnes, kUnsignedZero } top;
  std::uint32_t nan;
};

inline NaiveFormat naiveFormat(DType dtype) {
  using Top = NaiveFormat::Top;
  switch (dtype) {
    case DType::kFloat16:
    case DType::kComplex32:
      return {10, 5, 15, Top::kIeee, 0x7E00};
    case DType::kBFloat16:
      return {7, 8, 127, Top::kIeee, 0x7FC0};
    case DType::kFloat8E4M3FN:
      return {3, 4, 7, Top::kOnlyAllOnes, 0x7F};
    case DType::kFloat8E5M2:
      return {2, 5, 15, Top::kIeee, 0x7F};
    case DType::kFloat8E4M3FNUZ:
      return {3, 4, 8, Top::kUnsignedZero, 0x80};
    default:
      return {2, 5, 16, Top::kUnsignedZero, 0x80};  // kFloat8E5M2FNUZ
  }
}

inline float naiveDecode(DType dtype, std::uint32_t code) {
  if (dtype == DType::kFloat8E8M0FNU) {
    return code == 255 ? std::nanf("") : static_cast<float>(std::ldexp(1.0, static_cast<int>(code) - 127));
  }
  const NaiveFormat format = naiveFormat(dtype);
  const std::uint32_t signBit = 1u << (format.mantissaBits + format.exponentBits);
  const std::uint32_t magnitude = code & (signBit - 1);
  const int exponent = static_cast<int>(magnitude >> format.mantissaBits);
  const int mantissa = static_cast<int>(magnitude & ((1u << format.mantissaBits) - 1));
  const int topExponent = (1 << format.exponentBits) - 1;
  if (format.top == NaiveFormat::Top::kUnsignedZero && code == signBit) {
    return std::nanf("");
  }
  if (format.top == NaiveFormat::Top::kOnlyAllOnes && magnitude == signBit - 1) {
    return std::nanf("");
  }
  double value = exponent == 0
                     ? std::ldexp(mantissa, 1 - format.bias - format.mantissaBits)
                     : std::ldexp((1 << format.mantissaBits) + mantissa, exponent - format.bias - format.mantissaBits);
  if (format.top == NaiveFormat::Top::kIeee && exponent == topExponent) {
    if (mantissa != 0) {
      return std::nanf("");
    }
    value = std::numeric_limits<double>::infinity();
  }
  return static_cast<float>((code & signBit) != 0 ? -value : value);
}

// To nearest, ties to even, in double, where every step is exact.
inline std::uint32_t naiveEncode(DType dtype, float value) {
  if (dtype == DType::kFloat8E8M0FNU) {  // torch's rule, which drops the sign
    if (!std::isfinite(value)) {
      return 255;
    }
    const double magnitude = std::fabs(static_cast<double>(value));
    if (magnitude < std::ldexp(1.0, -126)) {
      return magnitude > std::ldexp(1.0, -127) ? 1 : 0;
    }
    int exponent = 0;
    const double fraction = std::frexp(magnitude, &exponent) * 2;  // in [1, 2)
    return static_cast<std::uint32_t>(exponent - 1 + 127 + (fraction >= 1.5 ? 1 : 0));
  }
  const NaiveFormat format = naiveFormat(dtype);
  if (std::isnan(value)) {
    return format.nan;
  }
  const std::uint32_t signBit = 1u << (format.mantissaBits + format.exponentBits);
  const std::uint32_t sign = std::signbit(value) ? signBit : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  int exponent = 1 - format.bias;
  if (magnitude >= std::ldexp(1.0, exponent)) {
    std::frexp(magnitude, &exponent);
    --exponent;
  }
  // Codes of one sign are consecutive integers, whatever the exponent.
  double code = std::numeric_limits<double>::infinity();
  if (std::isfinite(value)) {
    const double units = std::nearbyint(std::ldexp(magnitude, format.mantissaBits - exponent));
    code = units + std::ldexp(exponent - (1 - format.bias), format.mantissaBits);
  }
  const double infinity = std::ldexp((1 << format.exponentBits) - 1, format.mantissaBits);
  switch (format.top) {
    case NaiveFormat::Top::kIeee:
      return sign | static_cast<std::uint32_t>(std::min(code, infinity));
    case NaiveFormat::Top::kOnlyAllOnes:
      return sign | static_cast<std::uint32_t>(std::min(code, static_cast<double>(signBit - 2)));
    case NaiveFormat::Top::kUnsignedZero:
      break;
  }
  return code >= signBit ? signBit : code == 0 ? 0 : sign | static_cast<std::uint32_t>(code);
}

inline bool naiveIsComplex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}
inline bool naiveIsFloat(DType dtype) {
  return dtype >= DType::kFloat16 && dtype <= DType::kFloat8E8M0FNU;
}
inline std::size_t naiveLaneBytes(DType dtype) {
  return elementBytes(dtype) / (naiveIsComplex(dtype) ? 2 : 1);
}

template <typename T>
T naiveFloatOp(T a, T b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kMin:
      return std::isnan(a) || a < b ? a : b;
    case ReduceOp::kMax:
      return std::isnan(a) || a > b ? a : b;
    default:
      return a + b;
  }
}

// T accumulates; load and store translate one lane.
template <typename T, typename Load, typename Store>
void naiveReduceFloat(std::span<const std::byte* const> sources, bool isComplex, ReduceOp op, Load&& load,
                      Store&& store) {
  T re = load(sources[0], 0), im = isComplex ? load(sources[0], 1) : T{0};
  for (const std::byte* source : sources.subspan(1)) {
    const T otherRe = load(source, 0), otherIm = isComplex ? load(source, 1) : T{0};
    if (isComplex && op == ReduceOp::kProd) {
      const T first = re * otherRe, second = im * otherIm, third = re * otherIm, fourth = im * otherRe;
      re = first - second;
      im = third + fourth;
    } else {
      re = naiveFloatOp(re, otherRe, op);
      im = naiveFloatOp(im, otherIm, op);
    }
  }
  const T divisor = op == ReduceOp::kMean ? static_cast<T>(sources.size()) : T{1};
  store(0, re / divisor);
  if (isComplex) {
    store(1, im / divisor);
  }
}

template <typename T>
void naiveReduceInteger(std::byte* dst, std::span<const std::byte* const> sources, bool isBool, ReduceOp op) {
  const auto load = [&](const std::byte* source) {
    T value;
    std::memcpy(&value, source, sizeof(T));
    return isBool ? static_cast<T>(value != 0) : value;
  };
  T result = load(sources[0]);
  std::int64_t numTrue = result != 0;
  for (const std::byte* source : sources.subspan(1)) {
    const T other = load(source);
    numTrue += other != 0;
    const auto a = static_cast<unsigned __int128>(result), b = static_cast<unsigned __int128>(other);
    switch (op) {
      case ReduceOp::kProd:
        result = static_cast<T>(a * b);
        break;
      case ReduceOp::kMin:
        result = std::min(result, other);
        break;
      case ReduceOp::kMax:
        result = std::max(result, other);
        break;
      case ReduceOp::kBand:
        result = static_cast<T>(a & b);
        break;
      case ReduceOp::kBor:
        result = static_cast<T>(a | b);
        break;
      case ReduceOp::kBxor:
        result = static_cast<T>(a ^ b);
        break;
      default:
        result = isBool ? static_cast<T>(a | b) : static_cast<T>(a + b);
    }
  }
  if (op == ReduceOp::kMean) {
    const auto count = static_cast<__int128>(sources.size());
    result = static_cast<T>((isBool ? static_cast<__int128>(numTrue) : static_cast<__int128>(result)) / count);
  }
  std::memcpy(dst, &result, sizeof(T));
}

template <typename T>
void naiveReduceSame(std::byte* dst, std::span<const std::byte* const> sources, DType dtype, ReduceOp op) {
  const auto load = [](const std::byte* source, std::size_t lane) {
    T value;
    std::memcpy(&value, source + lane * sizeof(T), sizeof(T));
    return value;
  };
  const auto store = [&](std::size_t lane, T value) {
    const T stored = std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
    std::memcpy(dst + lane * sizeof(T), &stored, sizeof(T));
  };
  naiveReduceFloat<T>(sources, naiveIsComplex(dtype), op, load, store);
}

inline void naiveReduceSmall(std::byte* dst, std::span<const std::byte* const> sources, DType dtype, ReduceOp op) {
  const std::size_t laneBytes = naiveLaneBytes(dtype);
  const auto load = [&](const std::byte* source, std::size_t lane) {
    std::uint32_t code = 0;
    std::memcpy(&code, source + lane * laneBytes, laneBytes);
    return naiveDecode(dtype, code);
  };
  const auto store = [&](std::size_t lane, float value) {
    const std::uint32_t code = naiveEncode(dtype, value);
    std::memcpy(dst + lane * laneBytes, &code, laneBytes);
  };
  naiveReduceFloat<float>(sources, naiveIsComplex(dtype), op, load, store);
}

// One element. One source is copied.
inline void naiveReduce(std::byte* dst, std::span<const std::byte* const> sources, DType dtype, ReduceOp op) {
  if (sources.size() == 1) {
    std::memcpy(dst, sources[0], elementBytes(dtype));
    return;
  }
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return naiveReduceInteger<std::uint8_t>(dst, sources, dtype == DType::kBool, op);
    case DType::kInt8:
      return naiveReduceInteger<std::int8_t>(dst, sources, false, op);
    case DType::kInt16:
      return naiveReduceInteger<std::int16_t>(dst, sources, false, op);
    case DType::kInt32:
      return naiveReduceInteger<std::int32_t>(dst, sources, false, op);
    case DType::kInt64:
      return naiveReduceInteger<std::int64_t>(dst, sources, false, op);
    case DType::kUInt16:
      return naiveReduceInteger<std::uint16_t>(dst, sources, false, op);
    case DType::kUInt32:
      return naiveReduceInteger<std::uint32_t>(dst, sources, false, op);
    case DType::kUInt64:
      return naiveReduceInteger<std::uint64_t>(dst, sources, false, op);
    case DType::kFloat32:
    case DType::kComplex64:
      return naiveReduceSame<float>(dst, sources, dtype, op);
    case DType::kFloat64:
    case DType::kComplex128:
      return naiveReduceSame<double>(dst, sources, dtype, op);
    default:
      return naiveReduceSmall(dst, sources, dtype, op);
  }
}

}  // namespace shardwire::internal
