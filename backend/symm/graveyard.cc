#include "backend/symm/graveyard.h"

#include <algorithm>

#include "backend/base/mutex.h"
#include "backend/base/per_process.h"
#include "backend/memory/shared_heap.h"

namespace shardwire::internal {
namespace {

struct Graveyard {
  Mutex mutex;
  std::vector<BuriedBlock> blocks SW_GUARDED_BY(mutex);
};

Graveyard& graveyard() {
  static PerProcess<Graveyard> blocks;
  return blocks.get();
}

// Acquire: pairs with the holder's seq_cst store. All writes of the holder to the block happened before.
bool isHeld(BuriedBlock& block) {
  std::erase_if(block.holders, [&](const auto& holder) {
    return block.words.dropped(holder.first).load(std::memory_order_acquire) != 0 ||
           (holder.second != nullptr && holder.second->isOwnerGone());
  });
  return !block.holders.empty();
}

}  // namespace

void bury(BuriedBlock block) {
  {
    Graveyard& all = graveyard();
    const MutexLock lock(all.mutex);
    all.blocks.push_back(std::move(block));
  }
  clearBuried();
}

void clearBuried() {
  std::vector<BuriedBlock> unused;
  {
    Graveyard& all = graveyard();
    const MutexLock lock(all.mutex);
    std::erase_if(all.blocks, [&](BuriedBlock& block) {
      if (isHeld(block)) {
        return false;
      }
      unused.push_back(std::move(block));
      return true;
    });
  }
  for (const BuriedBlock& block : unused) {
    if (block.withdraw != nullptr) {
      block.withdraw();
    }
    SharedHeap::freeBlock(block.memory);
  }
}

std::size_t numBuried() {
  Graveyard& all = graveyard();
  const MutexLock lock(all.mutex);
  return all.blocks.size();
}

}  // namespace shardwire::internal
