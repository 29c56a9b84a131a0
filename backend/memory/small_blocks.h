// Blocks of up to 64 KiB: size classes, each cut from slabs of 2 MiB. Bookkeeping only, separate from the memory
// itself, so that a peer's stray write cannot damage the tables. Used under the owner's lock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

namespace shardwire::internal {

inline constexpr std::uint64_t kSlabBytes = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kMaxSmallBytes = std::uint64_t{64} << 10;
inline constexpr int kNumSizeClasses = 40;

// Multiples of 64 up to 1 KiB, then four per doubling: at most a quarter is wasted.
int sizeClassOf(std::uint64_t bytes);
std::uint64_t sizeClassBytes(int sizeClass);

class SmallBlocks {
 public:
  // The offset of a free block of the class; nothing when the class has none left: add a slab.
  std::optional<std::uint64_t> take(int sizeClass);
  void addSlab(std::uint64_t offset, int sizeClass);

  struct Freed {
    std::uint64_t bytes;                     // of the block
    std::optional<std::uint64_t> emptySlab;  // a slab without used blocks, already removed from the tables here
  };
  // nullopt: no used block starts at `offset`.
  std::optional<Freed> give(std::uint64_t offset);

 private:
  struct Slab {
    int sizeClass;
    std::uint32_t numBlocks;
    std::uint32_t numUsed = 0;
    std::uint32_t firstFreeWord = 0;  // the words before have no free block
    std::vector<std::uint64_t> used;  // a bit for each block; bits past the last are set
  };

  std::unordered_map<std::uint64_t, Slab> slabs_;  // by offset / kSlabBytes
  std::array<std::set<std::uint64_t>, kNumSizeClasses> withFree_;
};

}  // namespace shardwire::internal
