// Symmetric blocks of this process that it does not use any more and that peers may still write to. One list per process, looked through
// whenever symmetric memory is made, freed or dropped and when a group ends. Any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/symm/block_words.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

struct BuriedBlock {
  std::byte* memory = nullptr;               // of this process's heap
  BlockWords words;                          // behind it
  std::shared_ptr<void> attached = nullptr;  // pages of the heap that were held with it
  // Those who held it. Null: this process cannot see whether that one's is gone; of ranks that do not share memory the engine can, and
  // marks the words (ServedPart::dropped).
  std::vector<std::pair<Rank, std::shared_ptr<HeldMemory>>> holders;
  std::function<void()> withdraw = nullptr;  // before the memory is given back; null: nothing is to be done
};

void bury(BuriedBlock block);
// Gives back what nobody holds any more.
void clearBuried();
std::size_t numBuried();

}  // namespace shardwire::internal
