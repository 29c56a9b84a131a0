// Whether torch's storages are alive and have the same memory, for code that keeps this memory registered. Any thread.
#pragma once

#include "shardwire/storage_watch.h"

namespace shardwire::internal {

// TensorView::storage is a c10::StorageImpl here.
const StorageWatch& torchStorageWatch();

}  // namespace shardwire::internal
