#include "backend/symm/deferred_release.h"

#include <algorithm>

#include "backend/base/mutex.h"
#include "backend/base/per_process.h"
#include "backend/memory/shared_heap.h"

namespace shardwire::internal {
namespace {

struct DeferredBlocks {
  Mutex mutex;
  std::vector<DeferredBlock> blocks SW_GUARDED_BY(mutex);
};

// Acquire: pairs with the holder's seq_cst store. All writes of the holder to the block happened before.
bool isHeld(DeferredBlock& block) {
  std::erase_if(block.holders, [&](const auto& holder) {
    return block.words.dropped(holder.first).load(std::memory_order_acquire) != 0 ||
           (holder.second != nullptr && holder.second->isOwnerGone());
  });
  return !block.holders.empty();
}

}  // namespace

void releaseLater(DeferredBlock block) {
  {
    DeferredBlocks& all = PerProcess<DeferredBlocks>::get();
    const MutexLock lock(all.mutex);
    all.blocks.push_back(std::move(block));
  }
  releaseUnheld();
}

void releaseUnheld() {
  std::vector<DeferredBlock> unused;
  {
    DeferredBlocks& all = PerProcess<DeferredBlocks>::get();
    const MutexLock lock(all.mutex);
    std::erase_if(all.blocks, [&](DeferredBlock& block) {
      if (isHeld(block)) {
        return false;
      }
      unused.push_back(std::move(block));
      return true;
    });
  }
  for (const DeferredBlock& block : unused) {
    if (block.withdraw != nullptr) {
      block.withdraw();
    }
    SharedHeap::freeBlock(block.memory);
  }
}

std::size_t numDeferred() {
  DeferredBlocks& all = PerProcess<DeferredBlocks>::get();
  const MutexLock lock(all.mutex);
  return all.blocks.size();
}

}  // namespace shardwire::internal
