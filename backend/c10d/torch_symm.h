// torch's own symmetric memory API (torch.distributed._symmetric_memory) for CPU tensors: an allocator on the shared heap, handles, and CPU
// kernels of the symm_mem ops. Where this torch has none of it, nothing is registered.
#pragma once

#include <string>

namespace shardwire::internal {

// Once per process; later calls do nothing. Other devices' allocators, and another one for the CPU that is there already, stay. Where torch
// refuses, a warning in the log says so, and nothing else of shardwire misses it. Returns why torch refused; empty: it did not.
const std::string& registerTorchSymmetricMemory();
// Whether this torch has the API.
bool hasTorchSymmetricMemory();

}  // namespace shardwire::internal
