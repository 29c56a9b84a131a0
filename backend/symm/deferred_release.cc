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

// Releases the blocks without holders that `may` accepts, and returns whether there were any.
template <typename May>
bool release(const May& may) {
  std::vector<DeferredBlock> unused;
  {
    DeferredBlocks& all = PerProcess<DeferredBlocks>::get();
    const MutexLock lock(all.mutex);
    std::erase_if(all.blocks, [&](DeferredBlock& block) {
      if (!may(block) || isHeld(block)) {
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
  return !unused.empty();
}

// withdraw() takes the lock of an engine, which the thread that needs memory may have.
bool releaseForRoom() {
  return release([](const DeferredBlock& block) { return block.withdraw == nullptr; });
}

}  // namespace

void releaseLater(DeferredBlock block) {
  SharedHeap::whenFull(&releaseForRoom);
  {
    DeferredBlocks& all = PerProcess<DeferredBlocks>::get();
    const MutexLock lock(all.mutex);
    all.blocks.push_back(std::move(block));
  }
  releaseUnheld();
}

void releaseUnheld() {
  release([](const DeferredBlock&) { return true; });
}

std::size_t numDeferred() {
  DeferredBlocks& all = PerProcess<DeferredBlocks>::get();
  const MutexLock lock(all.mutex);
  return all.blocks.size();
}

}  // namespace shardwire::internal
