// The arithmetic of the naive model: one element at a time, every format by its definition. First the decoding and
// encoding of small floats, then loads and stores of each dtype, then the reductions of real, complex, integer and bool
// elements, and at last the choice by dtype.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tests/support/naive_model.h"

namespace shardwire::testing {

namespace {

// A float of 8 or 16 bits. Codes of positive values ascend with the values, from 0 to maxFinite.
struct SmallFloat {
  int mantissaBits;
  int bias;
  std::uint16_t maxFinite;
  std::uint16_t overflow;  // the code of larger values: infinity, NaN, or maxFinite in a format that saturates
  std::uint16_t signBit;
  bool hasNegativeZero;  // the formats without it have no infinity

  bool isInfinity(std::uint16_t code) const { return hasNegativeZero && code > maxFinite && code == overflow; }
};

bool smallFloatOf(DType dtype, SmallFloat& format) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kComplex32:
      format = {10, 15, 0x7bff, 0x7c00, 0x8000, true};
      return true;
    case DType::kBFloat16:
      format = {7, 127, 0x7f7f, 0x7f80, 0x8000, true};
      return true;
    case DType::kFloat8E4M3FN:
      format = {3, 7, 0x7e, 0x7e, 0x80, true};
      return true;
    case DType::kFloat8E5M2:
      format = {2, 15, 0x7b, 0x7c, 0x80, true};
      return true;
    case DType::kFloat8E4M3FNUZ:
      format = {3, 8, 0x7f, 0x80, 0x80, false};
      return true;
    case DType::kFloat8E5M2FNUZ:
      format = {2, 16, 0x7f, 0x80, 0x80, false};
      return true;
    default:
      return false;
  }
}

double magnitudeOf(const SmallFloat& format, std::uint16_t code) {
  const int exponent = code >> format.mantissaBits;
  const int mantissa = code & ((1 << format.mantissaBits) - 1);
  if (exponent == 0) {
    return std::ldexp(mantissa, 1 - format.bias - format.mantissaBits);
  }
  return std::ldexp(mantissa + (1 << format.mantissaBits), exponent - format.bias - format.mantissaBits);
}

float decode(const SmallFloat& format, std::uint16_t code) {
  const auto magnitude = static_cast<std::uint16_t>(code & ~format.signBit);
  const double value = format.isInfinity(magnitude)   ? std::numeric_limits<double>::infinity()
                       : magnitude > format.maxFinite ? std::numeric_limits<double>::quiet_NaN()
                                                      : magnitudeOf(format, magnitude);
  return static_cast<float>((code & format.signBit) != 0 ? -value : value);
}

// To nearest; of two equally near, the even code.
std::uint16_t encode(const SmallFloat& format, float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  std::uint16_t low = 0;
  std::uint16_t high = format.maxFinite;
  while (low < high) {  // the largest code with a value of at most `magnitude`
    const auto middle = static_cast<std::uint16_t>((low + high + 1) / 2);
    if (magnitudeOf(format, middle) <= magnitude) {
      low = middle;
    } else {
      high = static_cast<std::uint16_t>(middle - 1);
    }
  }
  // A value as far past the largest value as the next code would be is beyond the format; a value nearer than half of
  // this distance still rounds down.
  const double below = magnitude - magnitudeOf(format, low);
  const double above = (low == format.maxFinite
                            ? magnitudeOf(format, low) +
                                  (magnitudeOf(format, low) - magnitudeOf(format, static_cast<std::uint16_t>(low - 1)))
                            : magnitudeOf(format, static_cast<std::uint16_t>(low + 1))) -
                       magnitude;
  std::uint16_t code = low;
  if (above < below || (above == below && (low & 1) != 0)) {
    code = low == format.maxFinite ? format.overflow : static_cast<std::uint16_t>(low + 1);
  }
  if (std::signbit(value) && (code != 0 || format.hasNegativeZero)) {
    code |= format.signBit;
  }
  return code;
}

template <typename T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}
template <typename T>
void store(std::byte* bytes, T value) {
  std::memcpy(bytes, &value, sizeof value);
}

// Small floats in and out of f32; other types unchanged.
template <typename T>
T loadReal(DType dtype, const std::byte* bytes) {
  if constexpr (std::is_same_v<T, float>) {
    if (SmallFloat format; smallFloatOf(dtype, format)) {
      return decode(format, elementBytes(dtype) == 1 ? load<std::uint8_t>(bytes) : load<std::uint16_t>(bytes));
    }
  }
  return load<T>(bytes);
}
template <typename T>
void storeReal(DType dtype, std::byte* bytes, T value) {
  if constexpr (std::is_same_v<T, float>) {
    if (SmallFloat format; smallFloatOf(dtype, format)) {
      const std::uint16_t code = encode(format, value);
      elementBytes(dtype) == 1 ? store(bytes, static_cast<std::uint8_t>(code)) : store(bytes, code);
      return;
    }
  }
  store(bytes, value);
}

template <typename T>
T combineReal(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return a + b;
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kMin:
      return std::isnan(a) || a < b ? a : b;
    default:
      return std::isnan(a) || a > b ? a : b;
  }
}

template <typename T>
void reduceReal(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* out) {
  T value = loadReal<T>(dtype, sources[0]);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    value = combineReal(op, value, loadReal<T>(dtype, sources[s]));
  }
  storeReal(dtype, out, op == ReduceOp::kMean ? value / static_cast<T>(sources.size()) : value);
}

template <typename T>
void reduceComplex(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* out) {
  const std::size_t part = elementBytes(dtype) / 2;
  T real = loadReal<T>(dtype, sources[0]);
  T imaginary = loadReal<T>(dtype, sources[0] + part);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    const T nextReal = loadReal<T>(dtype, sources[s]);
    const T nextImaginary = loadReal<T>(dtype, sources[s] + part);
    if (op == ReduceOp::kProd) {
      const T product = real * nextReal - imaginary * nextImaginary;
      imaginary = real * nextImaginary + imaginary * nextReal;
      real = product;
    } else {
      real += nextReal;
      imaginary += nextImaginary;
    }
  }
  const auto divisor = static_cast<T>(op == ReduceOp::kMean ? sources.size() : 1);
  storeReal(dtype, out, real / divisor);
  storeReal(dtype, out + part, imaginary / divisor);
}

template <typename T>
void reduceInteger(ReduceOp op, std::span<const std::byte* const> sources, std::byte* out) {
  using U = std::uint64_t;  // wraps
  T value = load<T>(sources[0]);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    const T next = load<T>(sources[s]);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kMean:
        value = static_cast<T>(static_cast<U>(value) + static_cast<U>(next));
        break;
      case ReduceOp::kProd:
        value = static_cast<T>(static_cast<U>(value) * static_cast<U>(next));
        break;
      case ReduceOp::kMin:
        value = std::min(value, next);
        break;
      case ReduceOp::kMax:
        value = std::max(value, next);
        break;
      case ReduceOp::kBand:
        value = static_cast<T>(value & next);
        break;
      case ReduceOp::kBor:
        value = static_cast<T>(value | next);
        break;
      default:
        value = static_cast<T>(value ^ next);
        break;
    }
  }
  store(out, op == ReduceOp::kMean ? static_cast<T>(value / static_cast<T>(sources.size())) : value);
}

void reduceBool(ReduceOp op, std::span<const std::byte* const> sources, std::byte* out) {
  std::size_t numTrue = 0;
  for (const std::byte* source : sources) {
    numTrue += *source != std::byte{0} ? 1 : 0;
  }
  bool value = numTrue == sources.size();  // prod, min, mean, band
  if (op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBor) {
    value = numTrue > 0;
  } else if (op == ReduceOp::kBxor) {
    value = numTrue % 2 == 1;
  }
  *out = std::byte{value};
}

}  // namespace

void reduceElement(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* out) {
  switch (dtype) {
    case DType::kBool:
      return reduceBool(op, sources, out);
    case DType::kUInt8:
      return reduceInteger<std::uint8_t>(op, sources, out);
    case DType::kInt8:
      return reduceInteger<std::int8_t>(op, sources, out);
    case DType::kInt16:
      return reduceInteger<std::int16_t>(op, sources, out);
    case DType::kInt32:
      return reduceInteger<std::int32_t>(op, sources, out);
    case DType::kInt64:
      return reduceInteger<std::int64_t>(op, sources, out);
    case DType::kUInt16:
      return reduceInteger<std::uint16_t>(op, sources, out);
    case DType::kUInt32:
      return reduceInteger<std::uint32_t>(op, sources, out);
    case DType::kUInt64:
      return reduceInteger<std::uint64_t>(op, sources, out);
    case DType::kFloat64:
      return reduceReal<double>(dtype, op, sources, out);
    case DType::kComplex128:
      return reduceComplex<double>(dtype, op, sources, out);
    case DType::kComplex32:
    case DType::kComplex64:
      return reduceComplex<float>(dtype, op, sources, out);
    case DType::kFloat8E8M0FNU:
      // Powers of two, ascending with the codes: enough for min and max of whole numbers.
      *out = *sources[0];
      for (const std::byte* source : sources) {
        *out = (op == ReduceOp::kMin) == (*source < *out) ? *source : *out;
      }
      return;
    default:
      return reduceReal<float>(dtype, op, sources, out);
  }
}

void encodeSmall(DType dtype, int value, std::byte* out) {
  switch (dtype) {
    case DType::kBool:
      *out = std::byte{value > 0};
      return;
    case DType::kFloat8E8M0FNU:
      *out = static_cast<std::byte>(127 + std::abs(value));
      return;
    case DType::kFloat64:
      return store(out, static_cast<double>(value));
    case DType::kComplex32:
    case DType::kComplex64:
      storeReal(dtype, out, static_cast<float>(value));
      return storeReal(dtype, out + elementBytes(dtype) / 2, static_cast<float>(1 - value));
    case DType::kComplex128:
      store(out, static_cast<double>(value));
      return store(out + 8, static_cast<double>(1 - value));
    default:
      break;
  }
  if (dtype >= DType::kFloat16 && dtype < DType::kOpaque1) {
    return storeReal(dtype, out, static_cast<float>(value));
  }
  const bool isUnsigned = dtype == DType::kUInt8 || (dtype >= DType::kUInt16 && dtype <= DType::kUInt64);
  const std::int64_t whole = isUnsigned ? std::abs(value) : value;
  std::memcpy(out, &whole, std::min<std::size_t>(8, elementBytes(dtype)));
}

}  // namespace shardwire::testing
