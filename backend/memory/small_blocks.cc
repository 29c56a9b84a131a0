// A slab of 2 MiB has blocks of one size class and one bit for each block. A class takes blocks from the slab with the
// lowest number that has room, so slabs with higher numbers become empty and can be given back.
#include "backend/memory/small_blocks.h"

#include <algorithm>
#include <bit>

#include "shardwire/status.h"

namespace shardwire::internal {
namespace {

constexpr std::uint64_t kStep = 64;
constexpr std::uint64_t kFineLimit = 1024;
constexpr int kNumFine = kFineLimit / kStep;

}  // namespace

int sizeClassOf(std::uint64_t bytes) {
  SW_CHECK(bytes <= kMaxSmallBytes);
  if (bytes <= kFineLimit) {
    return static_cast<int>((std::max<std::uint64_t>(bytes, 1) - 1) / kStep);
  }
  const std::uint64_t last = bytes - 1;
  const int log = std::bit_width(last) - 1;  // 10 to 15
  return kNumFine + (log - 10) * 4 + static_cast<int>((last >> (log - 2)) & 3);
}

std::uint64_t sizeClassBytes(int sizeClass) {
  if (sizeClass < kNumFine) {
    return (static_cast<std::uint64_t>(sizeClass) + 1) * kStep;
  }
  const int log = 10 + (sizeClass - kNumFine) / 4;
  const std::uint64_t quarter = static_cast<std::uint64_t>((sizeClass - kNumFine) % 4);
  return (5 + quarter) << (log - 2);
}

std::optional<std::uint64_t> SmallBlocks::take(int sizeClass) {
  auto& candidates = withFree_[static_cast<std::size_t>(sizeClass)];
  if (candidates.empty()) {
    return std::nullopt;
  }
  const std::uint64_t number = *candidates.begin();
  Slab& slab = slabs_.at(number);
  while (slab.used[slab.firstFreeWord] == ~std::uint64_t{0}) {
    ++slab.firstFreeWord;
  }
  std::uint64_t& word = slab.used[slab.firstFreeWord];
  const int bit = std::countr_one(word);
  word |= std::uint64_t{1} << bit;
  if (++slab.numUsed == slab.numBlocks) {
    candidates.erase(candidates.begin());
  }
  const std::uint64_t block = std::uint64_t{slab.firstFreeWord} * 64 + static_cast<std::uint64_t>(bit);
  return number * kSlabBytes + block * sizeClassBytes(sizeClass);
}

void SmallBlocks::addSlab(std::uint64_t offset, int sizeClass) {
  SW_CHECK(offset % kSlabBytes == 0);
  Slab slab{sizeClass, static_cast<std::uint32_t>(kSlabBytes / sizeClassBytes(sizeClass))};
  slab.used.assign((slab.numBlocks + 63) / 64, 0);
  if (slab.numBlocks % 64 != 0) {
    slab.used.back() = ~std::uint64_t{0} << (slab.numBlocks % 64);
  }
  const bool isNew = slabs_.emplace(offset / kSlabBytes, std::move(slab)).second;
  SW_CHECK(isNew);
  withFree_[static_cast<std::size_t>(sizeClass)].insert(offset / kSlabBytes);
}

std::optional<SmallBlocks::Freed> SmallBlocks::give(std::uint64_t offset) {
  const auto found = slabs_.find(offset / kSlabBytes);
  if (found == slabs_.end()) {
    return std::nullopt;
  }
  auto& [number, slab] = *found;
  const std::uint64_t blockBytes = sizeClassBytes(slab.sizeClass);
  const std::uint64_t block = (offset % kSlabBytes) / blockBytes;
  const std::uint64_t bit = std::uint64_t{1} << (block % 64);
  if ((offset % kSlabBytes) % blockBytes != 0 || block >= slab.numBlocks || (slab.used[block / 64] & bit) == 0) {
    return std::nullopt;
  }
  slab.used[block / 64] &= ~bit;
  slab.firstFreeWord = std::min(slab.firstFreeWord, static_cast<std::uint32_t>(block / 64));
  auto& candidates = withFree_[static_cast<std::size_t>(slab.sizeClass)];
  candidates.insert(number);
  Freed freed{blockBytes, std::nullopt};
  // The last slab with room stays, so that a lone block taken and given back in turn does not make and remove a slab
  // each time.
  if (--slab.numUsed == 0 && candidates.size() > 1) {
    freed.emptySlab = number * kSlabBytes;
    candidates.erase(number);
    slabs_.erase(found);
  }
  return freed;
}

}  // namespace shardwire::internal
