#include "backend/c10d/pinned_pool.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <bit>

namespace shardwire::internal {

namespace {
// Smaller blocks are not worth a call of the driver each.
constexpr std::size_t kMinBlock = std::size_t{64} << 10;
}  // namespace

// Pinning takes the driver's locks, but only for new blocks.
at::Tensor PinnedPool::allocate(std::size_t bytes) {
  const auto options = at::TensorOptions(at::kByte);
  const auto size = static_cast<std::int64_t>(bytes);
  if (whyOrdinary_.empty()) {
    try {
      return at::empty({size}, options.pinned_memory(true));
    } catch (const std::exception& error) {
      whyOrdinary_ = std::string(error.what()).substr(0, std::string(error.what()).find('\n'));
    }
  }
  return at::empty({size}, options);
}

std::shared_ptr<std::byte> PinnedPool::take(std::size_t bytes) {
  const std::size_t size = std::max(kMinBlock, std::bit_ceil(bytes));
  at::Tensor block;
  {
    const MutexLock lock(mutex_);
    if (auto& kept = free_[size]; !kept.empty()) {
      block = std::move(kept.back());
      kept.pop_back();
    } else {
      // Blocks of other sizes make room.
      for (auto it = free_.begin(); it != free_.end() && total_ + size > maxBytes_; ++it) {
        while (!it->second.empty() && total_ + size > maxBytes_) {
          total_ -= it->first;
          it->second.pop_back();
        }
      }
      if (total_ + size > maxBytes_) {
        return nullptr;
      }
      try {
        block = allocate(size);
      } catch (const std::exception&) {
        return nullptr;  // no memory is left, like a pool at its bound
      }
      total_ += size;
    }
  }
  auto* address = static_cast<std::byte*>(block.data_ptr());
  return {address, [pool = shared_from_this(), block](std::byte*) mutable { pool->give(std::move(block)); }};
}

void PinnedPool::give(at::Tensor block) {
  const MutexLock lock(mutex_);
  free_[static_cast<std::size_t>(block.numel())].push_back(std::move(block));
}

std::string PinnedPool::describe() const {
  const MutexLock lock(mutex_);
  const std::string size = fmt::format("up to {} MiB of ", maxBytes_ >> 20);
  return whyOrdinary_.empty() ? size + "pinned memory"
                              : size + "ordinary memory (no pinned memory here: " + whyOrdinary_ + ")";
}

}  // namespace shardwire::internal
