// The value types every room shares: ranks, element types, reductions, small dimension vectors, deadlines. Torch-free;
// copyable; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shardwire/export.h"

namespace shardwire {

using Rank = std::int32_t;

// Most dimensions a tensor may have anywhere in shardwire.
inline constexpr int kMaxDims = 16;

// Element types. kOpaqueN are types that we move but never compute with (torch dtypes without a counterpart here), N
// bytes wide.
enum class DType : std::uint8_t {
  kBool = 0,
  kUInt8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUInt16 = 6,
  kUInt32 = 7,
  kUInt64 = 8,
  kFloat16 = 9,
  kBFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex32 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kFloat8E4M3FN = 16,
  kFloat8E5M2 = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kOpaque1 = 21,
  kOpaque2 = 22,
  kOpaque4 = 23,
  kOpaque8 = 24,
  kOpaque16 = 25,
};
inline constexpr int kNumDTypes = 26;

// Bytes of one element. Inline, as numElements(): short collectives ask often.
inline std::size_t elementBytes(DType dtype) {
  constexpr static std::array<std::uint8_t, kNumDTypes> kBytes = {1, 1, 1,  2, 4, 8, 2, 4, 8, 2, 2, 4, 8,
                                                                  4, 8, 16, 1, 1, 1, 1, 1, 1, 2, 4, 8, 16};
  return kBytes.at(static_cast<std::size_t>(dtype));
}
// "float32", "float8_e4m3fn", "opaque4": torch's name where torch has one.
SHARDWIRE_EXPORT std::string_view dtypeName(DType dtype);

// How overlapping inputs combine. kNone: the last writer wins (higher rank, then higher input index).
enum class ReduceOp : std::uint8_t {
  kNone = 0,
  kSum = 1,
  kProd = 2,
  kMin = 3,
  kMax = 4,
  kMean = 5,
  kBand = 6,
  kBor = 7,
  kBxor = 8
};
inline constexpr int kNumReduceOps = 9;
SHARDWIRE_EXPORT std::string_view reduceOpName(ReduceOp op);
// Torch's name: "product" for kProd, "avg" for kMean, else as reduceOpName().
SHARDWIRE_EXPORT std::string_view torchNameOf(ReduceOp op);
// The reduction of either name; nullopt for any other, "none" too.
SHARDWIRE_EXPORT std::optional<ReduceOp> reduceOpNamed(std::string_view name);
// For errors: "sum, prod, ...".
SHARDWIRE_EXPORT std::string reduceOpNames();
// Whether `op` is defined on `dtype`: kNone always; kBand.. on integers and bool; kMin/kMax not on complex; nothing
// else on opaque types.
SHARDWIRE_EXPORT bool supportsReduction(DType dtype, ReduceOp op);
// Whether elements can be cast on their way: equal types, or both floating point (8 bits to 64), or both complex. As
// torch's `.to`: to the nearest value, ties to even; float64 goes to 8 and 16 bits by way of float32.
SHARDWIRE_EXPORT bool supportsCast(DType from, DType to);

// Throws std::length_error: a shape cannot have `count` dimensions.
[[noreturn]] SHARDWIRE_EXPORT void refuseDims(std::size_t count);

// Up to kMaxDims 64-bit extents, offsets or strides, stored in place: no allocation, cheap to copy when short.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values)
      : Dims(std::span<const std::int64_t>(values.begin(), values.size())) {}
  // Throws std::length_error for more than kMaxDims values.
  explicit Dims(std::span<const std::int64_t> values) : size_(static_cast<std::uint8_t>(values.size())) {
    if (values.size() > static_cast<std::size_t>(kMaxDims)) {
      refuseDims(values.size());
    }
    std::copy(values.begin(), values.end(), values_.begin());
  }
  // Precondition: 0 <= numDims <= kMaxDims.
  static Dims filled(int numDims, std::int64_t value) {
    Dims dims;
    dims.size_ = static_cast<std::uint8_t>(numDims);
    std::fill_n(dims.values_.begin(), numDims, value);
    return dims;
  }
  Dims(const Dims& other) : size_(other.size_) { std::copy_n(other.values_.begin(), size_, values_.begin()); }
  Dims& operator=(const Dims& other) {
    size_ = other.size_;
    std::copy_n(other.values_.begin(), size_, values_.begin());
    return *this;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  std::span<const std::int64_t> span() const { return {values_.data(), size_}; }
  // Precondition: size() < kMaxDims.
  void push_back(std::int64_t value) { values_[size_++] = value; }

  friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

 private:
  // Not initialised past size_: copying a Dims copies size_ values only.
  std::array<std::int64_t, kMaxDims> values_;
  std::uint8_t size_ = 0;
};

// "[2, 4]"
SHARDWIRE_EXPORT std::string toString(const Dims& dims);
// Product of the extents; 1 for no dimensions. Precondition: no overflow (decoders and parsers check).
inline std::int64_t numElements(const Dims& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) {
    product *= extent;
  }
  return product;
}
// Row-major strides, in elements.
SHARDWIRE_EXPORT Dims contiguousStrides(const Dims& shape);

using Clock = std::chrono::steady_clock;
using Duration = std::chrono::nanoseconds;
using Deadline = Clock::time_point;
inline constexpr Deadline kNoDeadline = Deadline::max();
// now + timeout, saturating; a negative timeout means no deadline.
SHARDWIRE_EXPORT Deadline deadlineAfter(Duration timeout, Clock::time_point now = Clock::now());

}  // namespace shardwire
