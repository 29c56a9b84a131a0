// The process's heap that peers on the same host can address: one memfd, reserved large, mapped once here and once in every peer.
// Tensors allocated here move in one copy. Process-wide by nature (tensors outlive groups): made on first use through instance().
// Thread-safe. After fork() the heap belongs to the parent: on the inherited object allocate() falls back to ordinary memory and free() of
// inherited blocks does nothing; instance() makes the child a heap of its own. What the child writes into inherited blocks is its own:
// there they are mapped copy-on-write (see docs/limits.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "shardwire/status.h"

namespace shardwire::internal {

class SharedHeap {
 public:
  // The one heap of this process; kSystem when it cannot be made (errno, and what to do).
  static Result<SharedHeap*> instance();
  // The same, but null when nobody has made it yet.
  static SharedHeap* instanceIfMade();
  // For whoever takes ordinary memory as well: the process's heap, but in a child of fork() that made none of its own, the inherited
  // object.
  static Result<SharedHeap*> instanceOrInherited();
  // Frees what any heap of this process gave: its own, or one inherited by fork(), whose blocks are left to the parent.
  static void freeBlock(void* bytes);

  virtual ~SharedHeap() = default;
  // 64-byte aligned (2 MiB aligned from 2 MiB on, and then backed by memory at once where the kernel has huge pages to give); kSystem when
  // the reservation is exhausted, also after free memory was given back to the system. bytes == 0 gives a unique pointer.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  // Accepts what allocate() gave, from any thread. Memory of large blocks goes back to the system after a while of not being reused.
  virtual void free(void* bytes) = 0;
  // Offset in the heap when the whole range lies in it.
  virtual std::optional<std::uint64_t> offsetOf(const void* bytes, std::size_t size) const = 0;
  virtual int fd() const = 0;
  virtual std::uint64_t reservedBytes() const = 0;  // size of the mapping to make in a peer
  virtual std::uint64_t usedBytes() const = 0;      // allocated now
  // How often memory went back to the system. Counted after its pages went and before anybody is given the memory again. So whoever read
  // the count, then registered heap memory with a device (free memory beside it, too), and finds the same count now has the pages that are
  // there now of all that is allocated.
  virtual std::uint64_t numPurges() const = 0;
};

// Memory of this process's heap, which peers read directly; given back with its last owner. Errors of instance() and allocate().
Result<std::shared_ptr<void>> allocateShared(std::size_t bytes);
// Memory for copies and scratch of an operation: of the heap, and where that is full ordinary memory, which peers do not map but get at as
// they do at tensors there. kSystem when there is neither.
Result<std::shared_ptr<void>> allocateScratch(std::size_t bytes);

}  // namespace shardwire::internal
