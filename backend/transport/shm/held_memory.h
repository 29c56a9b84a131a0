// Memory of a rank of this host that this rank also writes: symmetric memory. A peer's heap is mapped for reading only.
// A held part of the heap is made writable while it is held, so a stray write still harms nothing else. Any thread.
#pragma once

#include <memory>
#include <string>

#include "backend/transport/shm/shm_link.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class ShmFabric;

// For a rank of this process: the memory itself.
std::shared_ptr<HeldMemory> holdOwnProcess(const HeapPlace& place);
// No memory: detects the end of the process at the other end of the link.
std::shared_ptr<HeldMemory> watchPeer(std::shared_ptr<const ShmLink> link);
// `size` bytes at `offset` of the heap mapped by `link`; both multiples of a page, checked. `fabric`: the fabric of
// this process, which must stay alive for peers meanwhile. kSystem when the kernel refuses, kMismatch for a place
// outside the heap.
Result<std::shared_ptr<HeldMemory>> holdPeerHeap(std::shared_ptr<const ShmLink> link, std::shared_ptr<ShmFabric> fabric,
                                                 std::uint64_t offset, std::size_t size, const std::string& who);

}  // namespace shardwire::internal
