// Memory of a rank of this host that this one writes as well: symmetric memory. A peer's heap is mapped for reading only; what is held of
// it is made writable for as long as it is held, so that a stray write still harms nothing else. Any thread.
#pragma once

#include <memory>
#include <string>

#include "backend/transport/shm/shm_link.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class ShmFabric;

// Of a rank of this process: as it lies.
std::shared_ptr<HeldMemory> holdOwnProcess(const HeapPlace& place);
// `size` bytes at `offset` of the heap that `link` has mapped; both multiples of a page, checked. `fabric`: of this process, which must not
// seem to be gone meanwhile. kSystem when the kernel refuses, kMismatch for a place that is not in the heap.
Result<std::shared_ptr<HeldMemory>> holdPeerHeap(std::shared_ptr<const ShmLink> link, std::shared_ptr<ShmFabric> fabric,
                                                 std::uint64_t offset, std::size_t size, const std::string& who);

}  // namespace shardwire::internal
