// Host memory for staging, from the accelerator's allocator of pinned memory if there is one. Blocks are reused, and
// their total size has a bound. One pool per group; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/mutex.h"

namespace shardwire::internal {

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(std::size_t maxBytes) : maxBytes_(maxBytes) {}

  // A block of at least `bytes`; returns to the pool when the last owner releases the block. Null when the block would
  // exceed the bound.
  std::shared_ptr<std::byte> take(std::size_t bytes);
  // "256 MiB of pinned memory", or why the memory is not pinned.
  std::string describe() const;

 private:
  at::Tensor allocate(std::size_t bytes) SW_REQUIRES(mutex_);
  void give(at::Tensor block);

  const std::size_t maxBytes_;
  mutable Mutex mutex_;
  std::map<std::size_t, std::vector<at::Tensor>> free_ SW_GUARDED_BY(mutex_);  // by size
  std::size_t total_ SW_GUARDED_BY(mutex_) = 0;                                // bytes of all blocks
  std::string whyOrdinary_ SW_GUARDED_BY(mutex_);  // not empty: this machine has no pinned memory
};

}  // namespace shardwire::internal
