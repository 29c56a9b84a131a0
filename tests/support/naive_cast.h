// Casts by the definitions of the formats, one lane at a time: the promises of castBox and compileOp. Independent of
// the kernels; slow and plain on purpose; header only.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "shardwire/types.h"
#include "tests/ops/reduce/naive_numeric.h"

namespace shardwire::internal {

// Of complex types, the dtype of a part.
inline DType naiveLaneDtype(DType dtype) {
  switch (dtype) {
    case DType::kComplex32:
      return DType::kFloat16;
    case DType::kComplex64:
      return DType::kFloat32;
    case DType::kComplex128:
      return DType::kFloat64;
    default:
      return dtype;
  }
}

// The float32 NaN that stands for a stored NaN in a cast; nothing where the code is a number. double keeps more payload
// than float32, and is narrowed and widened without this function.
inline std::optional<std::uint32_t> naiveNanOf(DType dtype, std::uint64_t code) {
  const auto bits = static_cast<std::uint32_t>(code);
  switch (dtype) {
    case DType::kFloat32:
      return (bits & 0x7FFFFFFF) > 0x7F800000 ? std::optional(bits) : std::nullopt;
    case DType::kBFloat16:
      return (bits & 0x7FFF) > 0x7F80 ? std::optional(bits << 16) : std::nullopt;
    case DType::kFloat16:
      return (bits & 0x7FFF) > 0x7C00 ? std::optional((bits & 0x8000) << 16 | 0x7FC00000 | (bits & 0x3FF) << 13)
                                      : std::nullopt;
    case DType::kFloat8E5M2:
      return (bits & 0x7F) > 0x7C ? std::optional((bits & 0x80) << 24 | 0x7FC00000 | (bits & 3) << 21) : std::nullopt;
    case DType::kFloat8E4M3FN:
      return (bits & 0x7F) == 0x7F ? std::optional((bits & 0x80) << 24 | 0x7FF00000) : std::nullopt;
    case DType::kFloat8E8M0FNU:
      return bits == 0xFF ? std::optional(0x7F800001U) : std::nullopt;
    default:  // the two FNUZ types
      return bits == 0x80 ? std::optional(0x7F800001U) : std::nullopt;
  }
}

inline std::uint64_t naiveStoreNan(DType dtype, std::uint32_t nan) {
  const std::uint32_t sign = nan >> 31;
  switch (dtype) {
    case DType::kFloat32:
      return nan;
    case DType::kFloat64:
      return std::uint64_t{sign} << 63 | 0x7FF8000000000000u | std::uint64_t{nan & 0x7FFFFF} << 29;
    case DType::kFloat16:
      return sign << 15 | 0x7E00 | (nan >> 13 & 0x3FF);
    case DType::kBFloat16:
      return 0x7FC0;
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      return sign << 7 | 0x7F;
    case DType::kFloat8E8M0FNU:
      return 0xFF;
    default:
      return 0x80;
  }
}

inline void naiveCastLane(DType from, const std::byte* in, DType to, std::byte* out) {
  std::uint64_t code = 0;
  std::memcpy(&code, in, elementBytes(from));
  float value = 0;
  std::optional<std::uint32_t> nan;
  if (from == DType::kFloat64) {
    double wide = 0;
    std::memcpy(&wide, in, sizeof(wide));
    value = static_cast<float>(wide);
    if (std::isnan(wide)) {
      nan =
          static_cast<std::uint32_t>(code >> 63) << 31 | 0x7FC00000 | static_cast<std::uint32_t>(code >> 29 & 0x7FFFFF);
    }
  } else if (from == DType::kFloat32) {
    std::memcpy(&value, in, sizeof(value));
    nan = naiveNanOf(from, code);
  } else {
    value = naiveDecode(from, static_cast<std::uint32_t>(code));
    nan = naiveNanOf(from, code);
  }
  if (nan.has_value()) {
    code = naiveStoreNan(to, *nan);
  } else if (to == DType::kFloat64) {
    const double wide = value;
    std::memcpy(&code, &wide, sizeof(wide));
  } else if (to == DType::kFloat32) {
    code = 0;
    std::memcpy(&code, &value, sizeof(value));
  } else {
    code = naiveEncode(to, value);
  }
  std::memcpy(out, &code, elementBytes(to));
}

// One element. Precondition: supportsCast(from, to).
inline void naiveCast(DType from, const std::byte* in, DType to, std::byte* out) {
  if (from == to) {
    std::memcpy(out, in, elementBytes(from));
    return;
  }
  naiveCastLane(naiveLaneDtype(from), in, naiveLaneDtype(to), out);
  if (naiveIsComplex(from)) {
    naiveCastLane(naiveLaneDtype(from), in + naiveLaneBytes(from), naiveLaneDtype(to), out + naiveLaneBytes(to));
  }
}

struct CastPair {
  DType from;
  DType to;
};
// All castable pairs of different types.
inline std::vector<CastPair> allCasts() {
  std::vector<CastPair> pairs;
  for (int from = 0; from < kNumDTypes; ++from) {
    for (int to = 0; to < kNumDTypes; ++to) {
      if (from != to && supportsCast(static_cast<DType>(from), static_cast<DType>(to))) {
        pairs.push_back({static_cast<DType>(from), static_cast<DType>(to)});
      }
    }
  }
  return pairs;
}

}  // namespace shardwire::internal
