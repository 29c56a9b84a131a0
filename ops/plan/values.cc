// The functions behind the value types in types.h and status.h of include/shardwire: first the names of dtypes
// and the reductions and casts that each dtype supports, then dimensions, deadlines, and the names of status
// codes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <stdexcept>

#include "shardwire/status.h"
#include "shardwire/status_error.h"
#include "shardwire/types.h"

namespace shardwire {

namespace {

// Indexed by DType.
constexpr std::array<std::string_view, kNumDTypes> kDTypeNames = {
    "bool",      "uint8",      "int8",          "int16",       "int32",           "int64",           "uint16",
    "uint32",    "uint64",     "float16",       "bfloat16",    "float32",         "float64",         "complex32",
    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "opaque1",   "opaque2",    "opaque4",       "opaque8",     "opaque16",
};

// Every value leaves out more dtypes: kNumbers the opaque, kOrdered also the complex, kIntegers also floating point.
enum class DefinedOn : std::uint8_t { kAll, kNumbers, kOrdered, kIntegers };

struct ReduceOpFacts {
  std::string_view name;
  std::string_view torchName;
  DefinedOn on;
};

// Every list of reductions outside of this file is made from this table.
constexpr std::array<ReduceOpFacts, kNumReduceOps> kReduceOpFacts = {{
    {"none", "none", DefinedOn::kAll},
    {"sum", "sum", DefinedOn::kNumbers},
    {"prod", "product", DefinedOn::kNumbers},
    {"min", "min", DefinedOn::kOrdered},
    {"max", "max", DefinedOn::kOrdered},
    {"mean", "avg", DefinedOn::kNumbers},
    {"band", "band", DefinedOn::kIntegers},
    {"bor", "bor", DefinedOn::kIntegers},
    {"bxor", "bxor", DefinedOn::kIntegers},
}};

const auto& rowOf(const auto& table, auto value) {
  const auto index = static_cast<std::size_t>(value);
  SW_CHECK(index < table.size());
  return table[index];
}

}  // namespace

std::string_view dtypeName(DType dtype) {
  return rowOf(kDTypeNames, dtype);
}

std::string_view reduceOpName(ReduceOp op) {
  return rowOf(kReduceOpFacts, op).name;
}

std::string_view torchNameOf(ReduceOp op) {
  return rowOf(kReduceOpFacts, op).torchName;
}

std::optional<ReduceOp> reduceOpNamed(std::string_view name) {
  for (int i = 1; i < kNumReduceOps; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (name == reduceOpName(op) || name == torchNameOf(op)) {
      return op;
    }
  }
  return std::nullopt;
}

std::string reduceOpNames() {
  std::string names;
  for (int i = 1; i < kNumReduceOps; ++i) {
    names += names.empty() ? "" : ", ";
    names += reduceOpName(static_cast<ReduceOp>(i));
  }
  return names;
}

bool supportsReduction(DType dtype, ReduceOp op) {
  const bool isOpaque = dtype >= DType::kOpaque1;
  const bool isComplex = dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
  const bool isInteger = dtype <= DType::kUInt64;  // bool included
  const DefinedOn most = isOpaque    ? DefinedOn::kAll
                         : isComplex ? DefinedOn::kNumbers
                         : isInteger ? DefinedOn::kIntegers
                                     : DefinedOn::kOrdered;
  return rowOf(kReduceOpFacts, op).on <= most;
}

bool supportsCast(DType from, DType to) {
  const auto isComplex = [](DType dtype) { return dtype >= DType::kComplex32 && dtype <= DType::kComplex128; };
  const auto isReal = [&](DType dtype) {
    return dtype >= DType::kFloat16 && dtype <= DType::kFloat8E8M0FNU && !isComplex(dtype);
  };
  return from == to || (isReal(from) && isReal(to)) || (isComplex(from) && isComplex(to));
}

void refuseDims(std::size_t count) {
  throw std::length_error(fmt::format("{} dimensions, and shardwire takes up to {}", count, kMaxDims));
}

std::string toString(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", "));
}

Dims contiguousStrides(const Dims& shape) {
  Dims strides = shape;
  std::int64_t stride = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

Deadline deadlineAfter(Duration timeout, Clock::time_point now) {
  if (timeout < Duration::zero()) {
    return kNoDeadline;
  }
  return timeout > kNoDeadline - now ? kNoDeadline : now + timeout;
}

std::string_view statusCodeName(StatusCode code) {
  constexpr std::array<std::string_view, kNumStatusCodes> kNames = {"ok",
                                                                    "invalid argument",
                                                                    "type error",
                                                                    "timeout",
                                                                    "peer failed",
                                                                    "mismatch",
                                                                    "aborted",
                                                                    "system error",
                                                                    "unsupported",
                                                                    "internal error",
                                                                    "interrupted",
                                                                    "gap",
                                                                    "checkpoint error",
                                                                    "kernel error",
                                                                    "error"};
  return rowOf(kNames, code);
}

const std::string& Status::noMessage() {
  static const std::string kNone;
  return kNone;
}

// Anchors the exception's type information in this library, so that every catch clause sees one type.
StatusError::~StatusError() = default;

void checkFailed(const char* condition, const char* file, int line) {
  throw std::logic_error(fmt::format("shardwire bug: {} does not hold at {}:{}", condition, file, line));
}

}  // namespace shardwire
