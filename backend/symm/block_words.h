// The words behind a rank's part of a symmetric block, which peers write: a bell for threads that sleep until a word of
// the block changes, the ranks that released the block, the latest barrier of each rank, and the rank inside its
// ordered section. The words lie in shared memory and are zeroed before any peer maps them. docs/threading.md explains
// the use of the words and why each memory order is enough.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backend/base/futex.h"
#include "shardwire/types.h"

namespace shardwire::internal {

class BlockWords {
 public:
  using Word = std::atomic<std::uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == 4);

  BlockWords() = default;
  // `bytes`: address of the words, a multiple of 64.
  BlockWords(std::byte* bytes, int worldSize) : bytes_(bytes), worldSize_(worldSize) {}
  static std::size_t sizeFor(int worldSize, int numChannels) {
    return kLine * 2 + static_cast<std::size_t>(worldSize) * static_cast<std::size_t>(1 + numChannels) * sizeof(Word);
  }

  // Counts rings: futex of the sleepers.
  Word& bell() const { return at(0); }
  // How many threads of the owner sleep, or are about to.
  Word& sleepers() const { return at(1); }
  // Called after a store of a word into the part: wakes the owner's sleepers. After a seq_cst store the sleeper
  // sees the store in the last check, or this function sees the sleeper's count. After plain stores a thread that is
  // about to sleep may be missed, and sees the store when its sleep ends.
  void wakeSleepers() const {
    if (sleepers().load(std::memory_order_seq_cst) != 0) {
      bell().fetch_add(1, std::memory_order_seq_cst);
      futexWakeAll(bell());
    }
  }
  // 1 + the rank inside its ordered section of stores; 0: no rank. Used only in one part of a host (commonOwner).
  Word& orderedBy() const { return at(kLine / sizeof(Word)); }
  // 1: `rank` has released this block.
  Word& dropped(Rank rank) const { return at(kArrays + static_cast<std::size_t>(rank)); }
  // The number of the latest barrier of `rank` on the channel.
  Word& arrived(int channel, Rank rank) const {
    return at(kArrays + static_cast<std::size_t>((1 + channel) * worldSize_ + rank));
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kArrays = 2 * kLine / sizeof(Word);
  Word& at(std::size_t index) const { return reinterpret_cast<Word*>(bytes_)[index]; }

  std::byte* bytes_ = nullptr;
  int worldSize_ = 0;
};

}  // namespace shardwire::internal
