#include "backend/c10d/torch_storage_watch.h"

#include <c10/core/StorageImpl.h>

namespace shardwire::internal {
namespace {

c10::StorageImpl* storageOf(const void* storage) {
  return static_cast<c10::StorageImpl*>(const_cast<void*>(storage));
}

}  // namespace

const StorageWatch& torchStorageWatch() {
  // A storage without owners gives its memory back at once. The object, and so the address, stays as long as weak
  // references exist.
  static constexpr StorageWatch kWatch = {
      .retainWeak = [](const void* storage) -> void* { return c10::raw::intrusive_ptr::make_weak(storageOf(storage)); },
      .isExpired = [](void* weak) { return c10::raw::weak_intrusive_ptr::use_count(storageOf(weak)) == 0; },
      .releaseWeak = [](void* weak) { c10::raw::weak_intrusive_ptr::decref(storageOf(weak)); },
  };
  return kWatch;
}

}  // namespace shardwire::internal
