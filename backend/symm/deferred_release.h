// Deferred release: symmetric blocks that this process no longer uses but that peers may still write to. One list per
// process, checked whenever symmetric memory is made, freed or released, when a group ends, and when the heap is full.
// Any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/symm/block_words.h"
#include "backend/transport/transport.h"
#include "shardwire/export.h"

namespace shardwire::internal {

struct DeferredBlock {
  std::byte* memory = nullptr;               // of this process's heap
  BlockWords words;                          // behind the memory
  std::shared_ptr<void> attached = nullptr;  // pages of the heap held together with the block
  // The ranks that held the block. Null: this process cannot detect the end of the holder's process. For ranks that do
  // not share memory the engine detects the end, and marks the words (ServedPart::dropped).
  std::vector<std::pair<Rank, std::shared_ptr<HeldMemory>>> holders;
  std::function<void()> withdraw = nullptr;  // before the memory is given back; null: nothing is to be done
};

void releaseLater(DeferredBlock block);
// Releases the blocks without holders.
void releaseUnheld();
SHARDWIRE_EXPORT std::size_t numDeferred();

}  // namespace shardwire::internal
