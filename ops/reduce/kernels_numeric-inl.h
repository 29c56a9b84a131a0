// The 8 and 16 bit floating types: stored bits <-> float. Included by kernels.cc only. Written without branches, so
// that the compiler vectorises; the same bits on every CPU. Values and rounding are torch's (round to nearest even),
// but for NaN: encoding always gives the one positive quiet NaN of the type, so that results do not depend on which
// operand's NaN a CPU passes on.
#pragma once

namespace shardwire::internal::SW_KERNEL_ISA {
namespace {

constexpr std::uint32_t kInfBits = 0x7F800000;
constexpr std::uint32_t kNanBits = 0x7FC00000;

inline float asFloat(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
inline std::uint32_t asBits(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

// IEEE-like layouts: sign, exponent, mantissa.
struct Float16Layout {
  using Stored = std::uint16_t;
  static constexpr unsigned kMantissaBits = 10, kBias = 15, kSignShift = 16;
  static constexpr std::uint32_t kOverflowFrom = std::uint32_t{143} << 23;  // |x| from here on becomes kOverflow
  static constexpr std::uint32_t kOverflow = 0x7C00, kNan = 0x7E00;
  static constexpr bool kHasInfinity = true;
  static constexpr bool kHasNegativeZero = true;
};
struct Float8E4M3FNLayout {
  using Stored = std::uint8_t;
  static constexpr unsigned kMantissaBits = 3, kBias = 7, kSignShift = 24;
  static constexpr std::uint32_t kOverflowFrom = std::uint32_t{1087} << 20;
  static constexpr std::uint32_t kOverflow = 0x7E, kNan = 0x7F;  // saturates, as torch does since 2.13
  static constexpr bool kHasInfinity = false;
  static constexpr bool kHasNegativeZero = true;
};
struct Float8E5M2Layout {
  using Stored = std::uint8_t;
  static constexpr unsigned kMantissaBits = 2, kBias = 15, kSignShift = 24;
  static constexpr std::uint32_t kOverflowFrom = std::uint32_t{143} << 23;
  static constexpr std::uint32_t kOverflow = 0x7C, kNan = 0x7F;
  static constexpr bool kHasInfinity = true;
  static constexpr bool kHasNegativeZero = true;
};
struct Float8E4M3FNUZLayout {
  using Stored = std::uint8_t;
  static constexpr unsigned kMantissaBits = 3, kBias = 8, kSignShift = 24;
  static constexpr std::uint32_t kOverflowFrom = std::uint32_t{0x87} << 23;
  static constexpr std::uint32_t kOverflow = 0x80, kNan = 0x80;
  static constexpr bool kHasInfinity = false;
  static constexpr bool kHasNegativeZero = false;
};
struct Float8E5M2FNUZLayout {
  using Stored = std::uint8_t;
  static constexpr unsigned kMantissaBits = 2, kBias = 16, kSignShift = 24;
  static constexpr std::uint32_t kOverflowFrom = std::uint32_t{0x8F} << 23;
  static constexpr std::uint32_t kOverflow = 0x80, kNan = 0x80;
  static constexpr bool kHasInfinity = false;
  static constexpr bool kHasNegativeZero = false;
};

template <typename Layout>
inline typename Layout::Stored encodeLane(float value) {
  constexpr unsigned kShift = 23 - Layout::kMantissaBits;
  constexpr std::uint32_t kMinNormal = (127 - Layout::kBias + 1) << 23;
  // Adding this leaves the subnormal's mantissa, rounded by the adder, in the low bits.
  constexpr std::uint32_t kSubnormalAdd = ((127 - Layout::kBias) + kShift + 1) << 23;
  const std::uint32_t sign = asBits(value) & 0x80000000;
  const std::uint32_t magnitude = asBits(value) ^ sign;
  const std::uint32_t subnormal = asBits(asFloat(magnitude) + asFloat(kSubnormalAdd)) - kSubnormalAdd;
  const std::uint32_t isOdd = (magnitude >> kShift) & 1;
  const std::uint32_t normal =
      (magnitude - (std::uint32_t{127 - Layout::kBias} << 23) + ((std::uint32_t{1} << (kShift - 1)) - 1) + isOdd) >>
      kShift;
  std::uint32_t code = magnitude < kMinNormal ? subnormal : normal;
  // Rounding may have carried into the codes above.
  code = magnitude >= Layout::kOverflowFrom || code > Layout::kOverflow ? Layout::kOverflow : code;
  const std::uint32_t storedSign = sign >> Layout::kSignShift;
  if constexpr (Layout::kHasNegativeZero) {
    code |= storedSign;
  } else {
    code = code == 0 ? 0 : code | storedSign;
  }
  return static_cast<typename Layout::Stored>(magnitude > kInfBits ? Layout::kNan : code);
}

// 8 exponent bits, nothing else: a power of two. The sign is lost; a tie goes up from a normal float and down from a
// subnormal one.
inline std::uint8_t encodeE8M0(float value) {
  const std::uint32_t exponent = (asBits(value) >> 23) & 0xFF;
  const std::uint32_t mantissa = asBits(value) & 0x7FFFFF;
  const std::uint32_t roundsUp = mantissa > 0x400000 ? 1 : (mantissa == 0x400000 && exponent > 0 ? 1 : 0);
  return static_cast<std::uint8_t>(exponent == 0xFF ? 0xFF : exponent + roundsUp);
}

inline std::uint16_t encodeBFloat16(float value) {
  const std::uint32_t bits = asBits(value);
  const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFF) > kInfBits ? 0x7FC0 : rounded);
}

inline float decodeFloat16(std::uint16_t stored) {
  const std::uint32_t word = std::uint32_t{stored} << 16;
  const std::uint32_t sign = word & 0x80000000;
  const std::uint32_t shifted = word + word;
  // Exponents move by multiplication, which also keeps infinities and NaN; subnormals by a subtraction that
  // renormalises.
  const float normal = asFloat((shifted >> 4) + (std::uint32_t{0xE0} << 23)) * 0x1.0p-112f;
  const float subnormal = asFloat((shifted >> 17) | (std::uint32_t{126} << 23)) - 0.5f;
  return asFloat(sign | (shifted < (std::uint32_t{1} << 27) ? asBits(subnormal) : asBits(normal)));
}

constexpr float powerOfTwo(int exponent) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(127 + exponent) << 23);  // of a normal float
}

template <typename Layout>
inline float decodeFloat8(std::uint8_t stored) {
  const std::uint32_t sign = std::uint32_t{stored & 0x80u} << 24;
  const std::uint32_t magnitude = stored & 0x7Fu;
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) *
                          powerOfTwo(1 - static_cast<int>(Layout::kBias) - static_cast<int>(Layout::kMantissaBits));
  const std::uint32_t normal = (magnitude << (23 - Layout::kMantissaBits)) + ((127 - Layout::kBias) << 23);
  std::uint32_t bits = magnitude < (1u << Layout::kMantissaBits) ? asBits(subnormal) : normal;
  if constexpr (!Layout::kHasNegativeZero) {
    return asFloat(stored == 0x80 ? kNanBits : bits | sign);
  } else {
    if constexpr (Layout::kHasInfinity) {
      bits = magnitude == Layout::kOverflow ? kInfBits : bits;
      bits = magnitude > Layout::kOverflow ? kNanBits : bits;
    } else {
      bits = magnitude == Layout::kNan ? kNanBits : bits;
    }
    return asFloat(bits | sign);
  }
}

inline float decodeE8M0(std::uint8_t stored) {
  const std::uint32_t bits = stored == 0 ? 0x00400000 : std::uint32_t{stored} << 23;
  return asFloat(stored == 0xFF ? kNanBits : bits);
}

}  // namespace
}  // namespace shardwire::internal::SW_KERNEL_ISA
