// torch's own symmetric memory API (torch.distributed._symmetric_memory) for CPU tensors: an allocator on the shared heap, handles, and CPU
// kernels of the symm_mem ops. Where this torch has none of it, nothing is registered.
#pragma once

#include <string>

namespace shardwire::internal {

// torch's bindings of a handle call it with Python's lock held; waits give it up. Null: there is no Python.
struct PythonLock {
  // Gives the lock up when this thread has it; what it returns is for take().
  void* (*release)() = nullptr;
  void (*take)(void* released) = nullptr;
};

// Once per process; later calls do nothing. Other devices' allocators, and another one for the CPU that is there already, stay. Where torch
// refuses, a warning in the log says so, and nothing else of shardwire misses it. Returns why torch refused; empty: it did not.
const std::string& registerTorchSymmetricMemory(PythonLock lock = {});
// Whether this torch has the API.
bool hasTorchSymmetricMemory();

}  // namespace shardwire::internal
