// Says whether memory that stays registered with a network card is still the same memory. The owner of tensors (c10d)
// fills this table. `storage` is the value of TensorView::storage, opaque here. Plain functions: any thread, must not
// throw.
#pragma once

namespace shardwire {

struct StorageWatch {
  // A weak reference to a live storage and to the memory that the storage has now. While the reference is held, no
  // other storage gets the same identity. Null: a later change of the storage's memory would not be noticed.
  void* (*retainWeak)(const void* storage) = nullptr;
  // Whether that memory was freed, with the storage or by a resize: the addresses may then have other pages.
  bool (*isExpired)(void* weak) = nullptr;
  void (*releaseWeak)(void* weak) = nullptr;
};

}  // namespace shardwire
