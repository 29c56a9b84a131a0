// applyWord() picks the unsigned integer of the element's size. applySized() then uses the machine's own operation
// where there is one, else a loop of compare-and-swap over the kernels of reductions. The second half of the file
// loads, compares and prints integers for waits.
#include "backend/symm/word_ops.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "ops/boxes/pair_loops.h"
#include "ops/boxes/reduce_box.h"

namespace shardwire::internal {
namespace {

constexpr std::array<ReduceOp, kNumWordOps> kReductions = {
    ReduceOp::kNone, ReduceOp::kNone, ReduceOp::kNone, ReduceOp::kNone, ReduceOp::kSum, ReduceOp::kProd,
    ReduceOp::kMin,  ReduceOp::kMax,  ReduceOp::kBand, ReduceOp::kBor,  ReduceOp::kBxor};

ReduceOp reductionOf(WordOp op) {
  return kReductions[static_cast<std::size_t>(op)];
}

bool isSigned(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 || dtype == DType::kInt64;
}

template <typename U>
U combined(U left, U right, DType dtype, ReduceOp op) {
  U result = 0;
  const std::array<const std::byte*, 2> sources = {reinterpret_cast<const std::byte*>(&left),
                                                   reinterpret_cast<const std::byte*>(&right)};
  reduceContiguous(reinterpret_cast<std::byte*>(&result), sources, 1, dtype, op);
  return result;
}

template <typename U>
U applySized(std::byte* at, DType dtype, WordOp op, U operand, U expected) {
  const std::atomic_ref<U> word(*reinterpret_cast<U*>(at));
  static_assert(std::atomic_ref<U>::is_always_lock_free && std::atomic_ref<U>::required_alignment <= sizeof(U));
  switch (op) {
    case WordOp::kFetch:
      return word.load();
    case WordOp::kSet:
      word.store(operand);
      return 0;
    case WordOp::kSwap:
      return word.exchange(operand);
    case WordOp::kCompareSwap:
      word.compare_exchange_strong(expected, operand);
      return expected;
    case WordOp::kAnd:
      return word.fetch_and(operand);
    case WordOp::kOr:
      return word.fetch_or(operand);
    case WordOp::kXor:
      return word.fetch_xor(operand);
    default:
      break;
  }
  if (op == WordOp::kAdd && isInteger(dtype)) {
    return word.fetch_add(operand);  // wraps, signed or not
  }
  U seen = word.load(std::memory_order_relaxed);
  while (!word.compare_exchange_weak(seen, combined(seen, operand, dtype, reductionOf(op)))) {
  }
  return seen;
}

}  // namespace

const char* wordOpName(WordOp op) {
  constexpr std::array<const char*, kNumWordOps> kNames = {"fetch", "set", "swap", "compare_swap", "add", "mul",
                                                           "min",   "max", "and",  "or",           "xor"};
  return kNames[static_cast<std::size_t>(op)];
}

std::optional<WordOp> wordOpOf(ReduceOp op) {
  const auto found = std::ranges::find(kReductions, op);
  return op == ReduceOp::kNone || found == kReductions.end()
             ? std::nullopt
             : std::optional(static_cast<WordOp>(found - kReductions.begin()));
}

bool supportsWordOp(DType dtype, WordOp op) {
  return elementBytes(dtype) <= 8 && (reductionOf(op) == ReduceOp::kNone || supportsReduction(dtype, reductionOf(op)));
}

bool commutes(DType dtype, WordOp op) {
  return reductionOf(op) != ReduceOp::kNone && (isInteger(dtype) || dtype == DType::kBool);
}

std::uint64_t applyWord(std::byte* at, DType dtype, WordOp op, std::uint64_t operand, std::uint64_t expected) {
  switch (elementBytes(dtype)) {
    case 1:
      return applySized(at, dtype, op, static_cast<std::uint8_t>(operand), static_cast<std::uint8_t>(expected));
    case 2:
      return applySized(at, dtype, op, static_cast<std::uint16_t>(operand), static_cast<std::uint16_t>(expected));
    case 4:
      return applySized(at, dtype, op, static_cast<std::uint32_t>(operand), static_cast<std::uint32_t>(expected));
    default:
      return applySized(at, dtype, op, operand, expected);
  }
}

void applyWords(const StridedBox& to, const StridedBox& operands, const Dims& shape, DType dtype, WordOp op) {
  if (numElements(shape) == 0) {
    return;
  }
  const std::size_t elemBytes = elementBytes(dtype);
  const PairLoops loops = pairLoopsOf(to, elemBytes, operands, elemBytes, shape);
  loops.forEachOuter(to.bytes, operands.bytes, [&](std::byte* at, const std::byte* from) {
    for (std::int64_t row = 0; row < loops[1].extent; ++row) {
      for (std::int64_t col = 0; col < loops[0].extent; ++col) {
        std::uint64_t operand = 0;
        std::memcpy(&operand, from + row * loops[1].srcStep + col * loops[0].srcStep, elemBytes);
        applyWord(at + row * loops[1].dstStep + col * loops[0].dstStep, dtype, op, operand);
      }
    }
  });
}

bool isInteger(DType dtype) {
  return isSigned(dtype) || dtype == DType::kUInt8 || dtype == DType::kUInt16 || dtype == DType::kUInt32 ||
         dtype == DType::kUInt64;
}

std::uint64_t loadInteger(const std::byte* at, DType dtype) {
  // atomic_ref of C++20 takes no const; a load writes nothing.
  const std::uint64_t raw = applyWord(const_cast<std::byte*>(at), dtype, WordOp::kFetch, 0);
  if (!isSigned(dtype)) {
    return raw;
  }
  const int unused = 64 - 8 * static_cast<int>(elementBytes(dtype));
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(raw << unused) >> unused);
}

bool compareIntegers(DType dtype, std::uint64_t left, Comparison comparison, std::uint64_t right) {
  const bool isLess =
      isSigned(dtype) ? static_cast<std::int64_t>(left) < static_cast<std::int64_t>(right) : left < right;
  switch (comparison) {
    case Comparison::kEq:
      return left == right;
    case Comparison::kNe:
      return left != right;
    case Comparison::kGt:
      return !isLess && left != right;
    case Comparison::kGe:
      return !isLess;
    case Comparison::kLt:
      return isLess;
    case Comparison::kLe:
      return isLess || left == right;
  }
  return false;
}

std::string integerText(DType dtype, std::uint64_t value) {
  return isSigned(dtype) ? std::to_string(static_cast<std::int64_t>(value)) : std::to_string(value);
}

}  // namespace shardwire::internal
