#include "backend/c10d/heap_allocator.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "backend/c10d/throw_status.h"
#include "backend/c10d/torch_compat.h"
#include "backend/memory/shared_heap.h"

namespace shardwire::internal {
namespace {

// Also runs in a child of fork(), for memory that the parent allocated.
void freeInHeap(void* bytes) {
  if (bytes != nullptr) {
    SharedHeap::freeBlock(bytes);
  }
}

SW_TORCH_VIRTUALS_BEGIN
class HeapAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) SW_TORCH_ALLOCATE_CONST override {
    // torch expects null for zero bytes, as torch's own allocators return.
    void* memory =
        bytes == 0 ? nullptr : valueOrThrow(valueOrThrow(SharedHeap::instanceOrInherited())->allocate(bytes));
    return {memory, memory, &freeInHeap, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &freeInHeap; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const {
    std::memcpy(destination, source, bytes);
  }
};
SW_TORCH_VIRTUALS_END

// Above the allocators of torch and torch's extensions.
constexpr std::uint8_t kPriority = 100;

}  // namespace

c10::Allocator& heapAllocator() {
  static auto* allocator = [] {
    static_cast<void>(valueOrThrow(SharedHeap::instanceOrInherited()));  // a failure to make the heap is thrown here
    return new HeapAllocator;                                            // never destroyed, like the heap
  }();
  return *allocator;
}

at::Tensor heapEmpty(c10::IntArrayRef shape, c10::ScalarType type) {
  return at::Tensor(
      at::detail::empty_generic(shape, &heapAllocator(), c10::DispatchKeySet(c10::DispatchKey::CPU), type, {}));
}

void enableCpuAllocator() {
  static_cast<void>(valueOrThrow(SharedHeap::instance()));  // in a child of fork(): the child's own heap
  c10::SetCPUAllocator(&heapAllocator(), kPriority);
}

bool isCpuAllocatorEnabled() {
  return SharedHeap::instanceIfMade() != nullptr && c10::GetCPUAllocator() == &heapAllocator();
}

bool isInSharedHeap(const at::Tensor& tensor) {
  const SharedHeap* heap = SharedHeap::instanceIfMade();
  if (heap == nullptr || !tensor.device().is_cpu() || !tensor.has_storage()) {
    return false;
  }
  const auto& storage = tensor.storage();
  return storage.nbytes() != 0 && heap->offsetOf(storage.data_ptr().get(), storage.nbytes()).has_value();
}

std::uint64_t heapUsedBytes() {
  const SharedHeap* heap = SharedHeap::instanceIfMade();
  return heap == nullptr ? 0 : heap->usedBytes();
}

}  // namespace shardwire::internal
