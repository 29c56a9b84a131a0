// Whether torch's storages are alive, for code that keeps the memory of storages registered. Any thread.
#pragma once

#include "shardwire/storage_watch.h"

namespace shardwire::internal {

// TensorView::storage is a c10::StorageImpl here.
const StorageWatch& torchStorageWatch();

}  // namespace shardwire::internal
