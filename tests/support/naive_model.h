// The promises of compileOp, element by element: expected outputs computed from the definitions alone, with none of the
// planner's code. Slow and plain on purpose. Also the data of random tests. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwire/op_spec.h"

namespace shardwire::testing {

using Bytes = std::vector<std::byte>;
// [rank][input or output]: a contiguous row-major local tensor.
using RankBytes = std::vector<std::vector<Bytes>>;

// The bytes of outputs before a run.
inline constexpr std::byte kUntouched{0xa5};

// Outputs filled with kUntouched. Precondition here and below: the specs fit together (mergeSpecs succeeds).
RankBytes blankOutputs(const std::vector<LocalSpec>& specs);

// Inputs of every rank: equal wherever replicas overlap. Arbitrary bytes where nothing is reduced; else small whole
// numbers, whose sums and products are exact in every dtype.
RankBytes fillInputs(std::uint64_t seed, const std::vector<LocalSpec>& specs);

// Outputs of every rank after a run over `inputs`; elements that no input covers hold kUntouched.
RankBytes expectedOutputs(const std::vector<LocalSpec>& specs, const RankBytes& inputs);

// One element of a reduction: in the accumulator's type, then rounded once into `to`.
void reduceAndCast(DType from, DType accumulator, DType to, ReduceOp op, std::span<const std::byte* const> sources,
                   std::byte* out);

// Per output element: whether any input covers the element. [rank][output][element], true where covered or held by none
// of the output's boxes.
std::vector<std::vector<std::vector<bool>>> coveredElements(const std::vector<LocalSpec>& specs);
bool hasGap(const std::vector<LocalSpec>& specs);

// Bytes that come from other ranks: of each output element, every needed contribution that the output's rank does not
// hold.
struct BytesFromPeers {
  std::uint64_t planned = 0;
  std::uint64_t least = 0;  // of any plan: elements that a rank wants several times count once
};
BytesFromPeers bytesFromPeers(const std::vector<LocalSpec>& specs);

// One element: out = sources[0] op sources[1] op ... in that order. Precondition: supportsReduction(dtype, op), op !=
// kNone, sources not empty.
void reduceElement(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* out);
// A small whole number as an element; negative numbers only for signed types.
void encodeSmall(DType dtype, int value, std::byte* out);

}  // namespace shardwire::testing
