// Free extents are kept in four orders: by offset, to join neighbours; by size, clean and dirty apart, to find the best
// fit; and dirty extents also by age, so that the oldest pages are returned first. insert() and remove() keep all four
// orders consistent.
#include "backend/memory/extent_map.h"

#include <algorithm>
#include <iterator>

#include "shardwire/status.h"

namespace shardwire::internal {

void ExtentMap::insert(Extent extent, bool dirty) {
  if (extent.bytes == 0) {
    return;
  }
  auto after = free_.lower_bound(extent.offset);
  SW_CHECK(after == free_.end() || extent.offset + extent.bytes <= after->first);
  if (after != free_.end() && after->first == extent.offset + extent.bytes && after->second.dirty == dirty) {
    extent.bytes += after->second.bytes;
    const auto next = std::next(after);
    remove(after);
    after = next;
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    SW_CHECK(before->first + before->second.bytes <= extent.offset);
    if (before->first + before->second.bytes == extent.offset && before->second.dirty == dirty) {
      extent = {before->first, before->second.bytes + extent.bytes};
      remove(before);
    }
  }
  const std::uint64_t age = ++clock_;
  free_.emplace(extent.offset, Free{extent.bytes, dirty, age});
  (dirty ? dirtyBySize_ : cleanBySize_).emplace(extent.bytes, extent.offset);
  if (dirty) {
    dirtyByAge_.emplace(age, extent.offset);
    dirtyBytes_ += extent.bytes;
  }
}

void ExtentMap::remove(ByOffset::iterator at) {
  const auto& [offset, free] = *at;
  (free.dirty ? dirtyBySize_ : cleanBySize_).erase({free.bytes, offset});
  if (free.dirty) {
    dirtyByAge_.erase({free.age, offset});
    dirtyBytes_ -= free.bytes;
  }
  free_.erase(at);
}

std::optional<Extent> ExtentMap::takeFrom(const BySize& candidates, std::uint64_t bytes, std::uint64_t alignment) {
  for (auto candidate = candidates.lower_bound({bytes, 0}); candidate != candidates.end(); ++candidate) {
    const auto [size, offset] = *candidate;
    const std::uint64_t start = (offset + alignment - 1) & ~(alignment - 1);
    if (start - offset > size - bytes) {
      continue;
    }
    const auto at = free_.find(offset);
    const bool dirty = at->second.dirty;
    remove(at);
    insert({offset, start - offset}, dirty);
    insert({start + bytes, size - (start - offset) - bytes}, dirty);
    return Extent{start, bytes};
  }
  return std::nullopt;
}

std::optional<Extent> ExtentMap::take(std::uint64_t bytes, std::uint64_t alignment, bool* wasDirty) {
  auto extent = takeFrom(dirtyBySize_, bytes, alignment);
  if (wasDirty != nullptr) {
    *wasDirty = extent.has_value();
  }
  return extent ? extent : takeFrom(cleanBySize_, bytes, alignment);
}

std::optional<Extent> ExtentMap::takeOldestDirty(std::uint64_t most) {
  if (dirtyByAge_.empty()) {
    return std::nullopt;
  }
  const auto oldest = free_.find(dirtyByAge_.begin()->second);
  const Extent whole{oldest->first, oldest->second.bytes};
  const std::uint64_t bytes = std::min(most, whole.bytes);
  remove(oldest);
  insert({whole.offset + bytes, whole.bytes - bytes}, true);
  return Extent{whole.offset, bytes};
}

}  // namespace shardwire::internal
