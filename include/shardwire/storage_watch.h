// Says whether memory that stays registered with a network card is still the same memory. The owner of tensors (c10d)
// fills this table. `storage` is the value of TensorView::storage, opaque here. Plain functions: any thread, must not
// throw.
#pragma once

namespace shardwire {

struct StorageWatch {
  // A weak reference to a live storage, whose identity stays reserved. Null: changes of its memory are not noticed.
  void* (*retainWeak)(const void* storage) = nullptr;
  // Whether the storage's memory of then was freed, by its end or a resize: the addresses may have other pages.
  bool (*isExpired)(void* weak) = nullptr;
  void (*releaseWeak)(void* weak) = nullptr;
};

}  // namespace shardwire
