// The words behind a rank's part of a symmetric block, which its peers write: a bell for those who sleep until a word of the block changes,
// who has dropped the block, who has come to a barrier, and who orders stores. They lie in shared memory, zeroed before any peer has them.
// How they are used, and why each order is enough, is in docs/threading.md.
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
  // `bytes`: where they lie, a multiple of 64.
  BlockWords(std::byte* bytes, int worldSize) : bytes_(bytes), worldSize_(worldSize) {}
  static std::size_t sizeFor(int worldSize, int numChannels) {
    return kLine * 2 + static_cast<std::size_t>(worldSize) * static_cast<std::size_t>(1 + numChannels) * sizeof(Word);
  }

  // Counts rings: futex of the sleepers.
  Word& bell() const { return at(0); }
  // How many threads of the owner sleep, or are about to.
  Word& sleepers() const { return at(1); }
  // After a store of a word into the part: wakes the owner's sleepers. Of a word that was stored seq_cst: either the sleeper sees it in its
  // last look, or its count is seen here. After plain stores, who is about to sleep may be missed, and finds them when the nap is over.
  void wakeSleepers() const {
    if (sleepers().load(std::memory_order_seq_cst) != 0) {
      bell().fetch_add(1, std::memory_order_seq_cst);
      futexWakeAll(bell());
    }
  }
  // 1 + the rank whose stores to many ranks go first; 0: nobody's. Of the lowest rank of a host only.
  Word& orderedBy() const { return at(kLine / sizeof(Word)); }
  // 1: that rank holds this block no longer.
  Word& dropped(Rank rank) const { return at(kArrays + static_cast<std::size_t>(rank)); }
  // The number of that rank's latest barrier on the channel.
  Word& arrived(int channel, Rank rank) const { return at(kArrays + static_cast<std::size_t>((1 + channel) * worldSize_ + rank)); }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kArrays = 2 * kLine / sizeof(Word);
  Word& at(std::size_t index) const { return reinterpret_cast<Word*>(bytes_)[index]; }

  std::byte* bytes_ = nullptr;
  int worldSize_ = 0;
};

}  // namespace shardwire::internal
