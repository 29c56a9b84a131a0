#include "shardwire/c10d.h"

#include "backend/c10d/heap_allocator.h"

namespace shardwire {

DType dtypeOf(const at::Tensor& tensor) {
  return internal::dtypeOf(tensor.scalar_type());
}

at::Tensor emptyInSharedHeap(at::IntArrayRef shape, at::ScalarType type) {
  return internal::heapEmpty(shape, type);
}

}  // namespace shardwire
