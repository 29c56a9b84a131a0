// Host memory for staging, from the accelerator's allocator of pinned memory where it has one: blocks that are used again, and no more of
// them than a bound. One per group; any thread.
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

  // At least `bytes`; goes back when the last owner lets go. Null when that would be more than the bound.
  std::shared_ptr<std::byte> take(std::size_t bytes);
  // "256 MiB of pinned memory", or why it is not pinned.
  std::string describe() const;
  std::size_t usedBytes() const;  // by blocks in use and blocks kept

 private:
  at::Tensor allocate(std::size_t bytes) SW_REQUIRES(mutex_);
  void give(at::Tensor block);

  const std::size_t maxBytes_;
  mutable Mutex mutex_;
  std::map<std::size_t, std::vector<at::Tensor>> free_ SW_GUARDED_BY(mutex_);  // by size
  std::size_t total_ SW_GUARDED_BY(mutex_) = 0;                                // bytes of all blocks
  std::string whyOrdinary_ SW_GUARDED_BY(mutex_);                              // not empty: there is no pinned memory here
};

}  // namespace shardwire::internal
