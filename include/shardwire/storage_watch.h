// How the inside tells whether memory that it keeps registered with a network card is still the same memory. Whoever owns tensors (c10d)
// fills this table; `storage` is what TensorView::storage carries, opaque here. Plain functions: any thread, must not throw.
#pragma once

namespace shardwire {

struct StorageWatch {
  // A weak reference to a storage that is alive now; as long as it is held, no other storage gets this identity.
  void* (*retainWeak)(const void* storage) = nullptr;
  // Whether the storage is gone, and its memory may be anything.
  bool (*isExpired)(void* weak) = nullptr;
  void (*releaseWeak)(void* weak) = nullptr;
};

}  // namespace shardwire
