#include "backend/c10d/torch_symm.h"

#include <string>

#include "backend/c10d/torch_compat.h"

#if SW_TORCH_HAS_SYMMETRIC_MEMORY
#include <functional>
#include <memory>

#include "backend/base/log.h"
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

// torch keeps kernels of ops that its Python module defines later until that module is imported. If torch refuses one
// kernel, the kernels registered before are removed; otherwise no kernel is ever removed.
void registerKernels() {
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "symm_mem", c10::DispatchKey::CPU, __FILE__, __LINE__);
  implementSymmOps(*library);
  implementSymmAllToAll(*library);
  implementSymmFusedOps(*library);
  static_cast<void>(library.release());
}

void registerAll() {
#if !SW_TORCH_HAS_SYMM_BACKENDS
  defineMissingSymmOps();
#endif
  registerKernels();
  const auto& allocator = TorchSymmetricAllocator::instance();
#if SW_TORCH_HAS_SYMM_BACKENDS
  ::c10d::symmetric_memory::register_availability(allocator->name(), allocator);
#endif
  if (!::c10d::symmetric_memory::has_allocator(c10::DeviceType::CPU)) {
    ::c10d::symmetric_memory::register_allocator(c10::DeviceType::CPU, allocator);
  }
}

std::string whatFailedIn(const std::function<void()>& step) {
  try {
    step();
    return {};
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

const std::string& registerTorchSymmetricMemory() {
  static const std::string failure = [] {
    const std::string why = whatFailedIn(registerAll);
    if (!why.empty()) {
      logWarn(
          "torch's symmetric memory for the CPU is not available: torch {} refused the registration; all else works. "
          "torch says: {}",
          torchVersion(), why);
    }
    return why;
  }();
  return failure;
}
#else
const std::string& registerTorchSymmetricMemory() {
  static const std::string none;
  return none;
}
#endif

}  // namespace shardwire::internal
