// The process's heap that peers on the same host can address: one memfd with a large reserved size, mapped once here
// and once in every peer. Tensors allocated here move in one copy. Process-wide by nature (tensors outlive groups):
// made on first use through instance(). Thread-safe. After fork() the heap belongs to the parent. On the inherited
// object allocate() falls back to ordinary memory, and free() of inherited blocks does nothing; instance() makes a heap
// for the child. Inherited blocks are mapped copy-on-write in the child, so the child's writes stay in the child (see
// docs/limits.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "shardwire/export.h"
#include "shardwire/status.h"

namespace shardwire::internal {

class SharedHeap {
 public:
  // The one heap of this process; kSystem when the heap cannot be made (errno, and how to fix it).
  SHARDWIRE_EXPORT static Result<SharedHeap*> instance();
  // The same, but null when the heap was not made yet.
  SHARDWIRE_EXPORT static SharedHeap* instanceIfMade();
  // For callers that accept ordinary memory too: the process's heap, or, in a child of fork() without a heap of its
  // own, the inherited object.
  SHARDWIRE_EXPORT static Result<SharedHeap*> instanceOrInherited();
  // Frees a block of any heap of this process: of its own heap, or of a heap inherited by fork(), whose blocks stay
  // with the parent.
  SHARDWIRE_EXPORT static void freeBlock(void* bytes);
  // `release` frees blocks that nobody needs any more, and returns whether there were any. Called before allocate()
  // returns that there is no room, without the heap's lock, but perhaps under locks of the caller.
  static void whenFull(bool (*release)());

  virtual ~SharedHeap() = default;
  // 64-byte aligned (2 MiB aligned from 2 MiB on, and then backed by memory at once where the kernel has huge pages to
  // give); kSystem when the reservation is exhausted, also after free memory was given back to the system. bytes == 0
  // gives a unique pointer.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  // Accepts what allocate() gave, from any thread. Memory of large blocks goes back to the system after a while of not
  // being reused.
  virtual void free(void* bytes) = 0;
  // Offset in the heap when the whole range lies in the heap.
  virtual std::optional<std::uint64_t> offsetOf(const void* bytes, std::size_t size) const = 0;
  virtual int fd() const = 0;
  virtual std::uint64_t reservedBytes() const = 0;  // size of the mapping to make in a peer
  virtual std::uint64_t usedBytes() const = 0;      // allocated now
  // How often memory was returned to the system. The count rises after the pages are gone and before the memory is
  // allocated again. So a caller may read the count, then register heap memory with a device (including free memory).
  // If the count is unchanged later, the registered pages are still the pages of all allocated memory.
  virtual std::uint64_t numPurges() const = 0;
};

// Memory of this process's heap, which peers read directly; given back with the last owner. Errors of instance() and
// allocate().
Result<std::shared_ptr<void>> allocateShared(std::size_t bytes);
// Memory for copies and scratch of an operation: of the heap or, when the heap is full, ordinary memory, which peers do
// not map but reach like tensors in ordinary memory. kSystem when neither is available.
SHARDWIRE_EXPORT Result<std::shared_ptr<void>> allocateScratch(std::size_t bytes);

}  // namespace shardwire::internal
