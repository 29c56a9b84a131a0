// Says whether memory that stays registered with a network card is still the same memory. The owner of tensors (c10d)
// fills this table. `storage` is the value of TensorView::storage, opaque here. Plain functions: any thread, must not
// throw.
#pragma once

namespace shardwire {

struct StorageWatch {
  // A weak reference to a live storage. While the reference is held, no other storage gets the same identity.
  void* (*retainWeak)(const void* storage) = nullptr;
  // Whether the storage was freed: its memory may then hold anything.
  bool (*isExpired)(void* weak) = nullptr;
  void (*releaseWeak)(void* weak) = nullptr;
};

}  // namespace shardwire
