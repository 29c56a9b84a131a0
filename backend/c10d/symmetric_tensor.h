// Tensors over symmetric memory: ordinary CPU tensors whose storage is one rank's part of a block, this rank's own or a
// peer's. The storage identifies any view of such a tensor, at any offset and with any strides. The block lives as long
// as a storage over the block. Any thread; every function throws StatusError.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>

#include "backend/symm/word_ops.h"
#include "shardwire/export.h"
#include "shardwire/symmetric_memory.h"

namespace shardwire::internal {

struct SymmetricPlace {
  std::shared_ptr<SymmetricMemory> block;
  Rank rank = 0;  // the owner of the part
};

// The part of `rank` as a contiguous tensor.
SHARDWIRE_EXPORT at::Tensor symmetricTensor(std::shared_ptr<SymmetricMemory> block, Rank rank, c10::IntArrayRef shape,
                                            c10::ScalarType type);
// Nothing: the tensor lies in other memory.
SHARDWIRE_EXPORT std::optional<SymmetricPlace> symmetricPlaceOf(const at::Tensor& tensor);
// The same elements of the part of `rank`, with the same strides. kUnsupported when the part of `rank` cannot be
// addressed here.
SHARDWIRE_EXPORT at::Tensor peerTensor(const at::Tensor& tensor, Rank rank);

// `to` and `from` have one shape and dtype. putTo: `to` is symmetric, and the part of `rank` is written. getFrom:
// `from` is symmetric, and the part of `rank` is read.
SHARDWIRE_EXPORT void putTo(const at::Tensor& to, const at::Tensor& from, Rank rank, bool isNonBlocking);
SHARDWIRE_EXPORT void getFrom(const at::Tensor& to, const at::Tensor& from, Rank rank, bool isNonBlocking);

// Changes one element of the part of `rank` and wakes threads that wait for the element. With `fetches` returns the
// value before the change, otherwise any value.
SHARDWIRE_EXPORT std::uint64_t atomicOn(const at::Tensor& word, WordOp op, Rank rank, std::uint64_t operand,
                                        std::uint64_t expected, bool fetches);
// Refuses what atomicOn() refuses, and changes nothing.
SHARDWIRE_EXPORT void requireWord(const at::Tensor& word, WordOp op, Rank rank);
// Whether such a call on the part of `rank` waits for no other rank: the part is addressed here, or the call is
// refused.
SHARDWIRE_EXPORT bool isDirect(const at::Tensor& tensor, Rank rank);
// Waits for this rank's own part.
SHARDWIRE_EXPORT std::uint64_t waitOn(const at::Tensor& word, Comparison comparison, std::uint64_t value,
                                      std::optional<Duration> timeout, std::span<const Rank> sources);

// Over the same elements of the parts of `ranks`, in their order. The reduction is rounded once into `out`.
SHARDWIRE_EXPORT void reduceParts(const at::Tensor& tensor, std::span<const Rank> ranks, ReduceOp op,
                                  const at::Tensor& out);
SHARDWIRE_EXPORT void storeToParts(const at::Tensor& tensor, std::span<const Rank> ranks, const at::Tensor& values);
// Each element atomically; the elements of all calls get one order in all parts, so the parts stay equal. Calls with
// different ops have this order only on types whose operations do not commute.
SHARDWIRE_EXPORT void reduceIntoParts(const at::Tensor& tensor, std::span<const Rank> ranks, WordOp op,
                                      const at::Tensor& values);

}  // namespace shardwire::internal
