// Tensors whose storage lies in the shared heap, where ranks on this host read and write them in place. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>

#include "shardwire/export.h"

namespace shardwire::internal {

// The allocator over SharedHeap; never destroyed, because tensors point to the allocator. Throws StatusError when the
// heap cannot be made.
c10::Allocator& heapAllocator();
// An uninitialised, contiguous CPU tensor in the shared heap.
SHARDWIRE_EXPORT at::Tensor heapEmpty(c10::IntArrayRef shape, c10::ScalarType type);
// Makes every later CPU tensor of this process lie in the shared heap. Cannot be undone: tensors may outlive any
// switch.
SHARDWIRE_EXPORT void enableCpuAllocator();
SHARDWIRE_EXPORT bool isCpuAllocatorEnabled();
// Whether all of the tensor's storage lies in the shared heap. False when no heap was made yet.
SHARDWIRE_EXPORT bool isInSharedHeap(const at::Tensor& tensor);
SHARDWIRE_EXPORT std::uint64_t heapUsedBytes();

}  // namespace shardwire::internal
