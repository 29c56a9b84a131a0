// Atomic operations on one element of memory that several processes write: lock-free, by std::atomic_ref on the
// unsigned integer of the element's size. Integers use the machine's own operations. All other types use a
// compare-and-swap with the arithmetic of reductions (ops/boxes/reduce_box.h), so an atomic add gives the same bits as
// a sum of two. Any thread, any process. Values travel as the element's bytes in the low end of 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ops/boxes/strided_runs.h"
#include "shardwire/export.h"
#include "shardwire/symmetric_memory.h"
#include "shardwire/types.h"

namespace shardwire::internal {

SHARDWIRE_EXPORT const char* wordOpName(WordOp op);
// The operation that reduces into a word; nullopt: there is none, as for the mean.
SHARDWIRE_EXPORT std::optional<WordOp> wordOpOf(ReduceOp op);

// Elements of up to 8 bytes; arithmetic where supportsReduction() has it.
SHARDWIRE_EXPORT bool supportsWordOp(DType dtype, WordOp op);
// Whether several operations `op` give the same result in any order: on integers and bool, all but stores. Different
// operations have no common result.
SHARDWIRE_EXPORT bool commutes(DType dtype, WordOp op);
// Returns the value before the operation. Sequentially consistent. kCompareSwap stores `operand` where the element's
// bytes equal `expected`. Precondition: supportsWordOp(); `at` is a multiple of the element's size.
std::uint64_t applyWord(std::byte* at, DType dtype, WordOp op, std::uint64_t operand, std::uint64_t expected = 0);
// The same for each element of a box, with the elements of `operands`, row by row; each element is atomic, the box is
// not.
SHARDWIRE_EXPORT void applyWords(const StridedBox& to, const StridedBox& operands, const Dims& shape, DType dtype,
                                 WordOp op);

// Integers, without bool.
SHARDWIRE_EXPORT bool isInteger(DType dtype);
// Acquire; widened to 64 bits by the dtype's signedness.
SHARDWIRE_EXPORT std::uint64_t loadInteger(const std::byte* at, DType dtype);
bool compareIntegers(DType dtype, std::uint64_t left, Comparison comparison, std::uint64_t right);
SHARDWIRE_EXPORT std::string integerText(DType dtype, std::uint64_t value);

}  // namespace shardwire::internal
