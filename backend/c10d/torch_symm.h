// torch's own symmetric memory API (torch.distributed._symmetric_memory) for CPU tensors: an allocator on the shared
// heap, handles, and CPU kernels of the symm_mem ops. In a torch without this API nothing is registered.
#pragma once

#include <string>

#include "shardwire/export.h"

namespace shardwire::internal {

// Once per process; later calls do nothing. Other devices' allocators, and an existing allocator for the CPU, stay. If
// torch refuses, the log has a warning, and nothing else of shardwire is affected. Returns torch's reason for a
// refusal; empty: no refusal.
SHARDWIRE_EXPORT const std::string& registerTorchSymmetricMemory();
// Whether this torch has the API.
SHARDWIRE_EXPORT bool hasTorchSymmetricMemory();

}  // namespace shardwire::internal
