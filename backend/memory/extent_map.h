// The free ranges of a heap: which bytes are free, which free bytes still have pages, and which range fits best.
// Bookkeeping only: no memory is touched. Used under the owner's lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace shardwire::internal {

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

// A free extent is clean (has no pages) or dirty (has pages from the last use). Neighbours of one kind are always one
// extent.
class ExtentMap {
 public:
  // All of [0, bytes) is free and clean.
  explicit ExtentMap(std::uint64_t bytes) { insert({0, bytes}, false); }

  // The smallest extent with room for `bytes` at a multiple of `alignment` (a power of two); dirty extents first,
  // because their pages need no faulting. `wasDirty` (may be null) is set to whether the extent was dirty.
  std::optional<Extent> take(std::uint64_t bytes, std::uint64_t alignment, bool* wasDirty = nullptr);
  // Gives a range back.
  void give(Extent extent, bool dirty) { insert(extent, dirty); }
  // Takes up to `most` bytes out of the dirty extent that has been free for the longest time.
  std::optional<Extent> takeOldestDirty(std::uint64_t most);

  std::uint64_t dirtyBytes() const { return dirtyBytes_; }

 private:
  struct Free {
    std::uint64_t bytes;
    bool dirty;
    std::uint64_t age;  // when the extent was last given back; dirty only
  };
  using ByOffset = std::map<std::uint64_t, Free>;
  using BySize = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // (bytes, offset)

  void insert(Extent extent, bool dirty);
  void remove(ByOffset::iterator at);
  std::optional<Extent> takeFrom(const BySize& candidates, std::uint64_t bytes, std::uint64_t alignment);

  ByOffset free_;
  BySize cleanBySize_;
  BySize dirtyBySize_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> dirtyByAge_;  // (age, offset)
  std::uint64_t dirtyBytes_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace shardwire::internal
