#include "backend/c10d/torch_symm.h"

#include "backend/c10d/torch_compat.h"

#if SW_TORCH_HAS_SYMMETRIC_MEMORY
#include <mutex>

#include "backend/c10d/torch_symm_memory.h"
#include "backend/c10d/torch_symm_ops.h"
// After shardwire/torch_backend.h.
#include <torch/library.h>
#endif

namespace shardwire::internal {

bool hasTorchSymmetricMemory() {
  return SW_TORCH_HAS_SYMMETRIC_MEMORY;
}

#if SW_TORCH_HAS_SYMMETRIC_MEMORY
namespace {

PythonLock& pythonLock() {
  static PythonLock lock;  // set once, before anything can wait
  return lock;
}

}  // namespace

WithoutPython::WithoutPython() : released_(pythonLock().release == nullptr ? nullptr : pythonLock().release()) {}

WithoutPython::~WithoutPython() {
  if (released_ != nullptr) {
    pythonLock().take(released_);
  }
}

void registerTorchSymmetricMemory(PythonLock lock) {
  static std::once_flag once;
  std::call_once(once, [&] {
    pythonLock() = lock;
    const auto& allocator = TorchSymmetricAllocator::instance();
#if SW_TORCH_HAS_SYMM_BACKENDS
    ::c10d::symmetric_memory::register_availability(allocator->name(), allocator);
#else
    defineMissingSymmOps();
#endif
    if (!::c10d::symmetric_memory::has_allocator(c10::DeviceType::CPU)) {
      ::c10d::symmetric_memory::register_allocator(c10::DeviceType::CPU, allocator);
    }
    // Kernels of ops that torch defines only when its Python module is imported wait for that. Never taken back.
    static auto* const library = new torch::Library(torch::Library::IMPL, "symm_mem", c10::DispatchKey::CPU, __FILE__, __LINE__);
    implementSymmOps(*library);
    implementSymmAllToAll(*library);
    implementSymmFusedOps(*library);
  });
}
#else
void registerTorchSymmetricMemory(PythonLock) {}
#endif

}  // namespace shardwire::internal
