#include "backend/symm/heap_pages.h"

#include <algorithm>
#include <bit>

#include "backend/base/page_size.h"
#include "backend/memory/shared_heap.h"

namespace shardwire::internal {
namespace {

// The heap takes these sizes from slabs. Blocks of a slab begin at multiples of their size if the size is a power of
// two. Longer blocks have pages of their own in any case.
constexpr std::size_t kSlabLimit = std::size_t{64} << 10;

}  // namespace

std::size_t wholePages(std::size_t bytes) {
  return bytes <= kSlabLimit ? std::bit_ceil(std::max(bytes, pageBytes())) : inWholePages(bytes);
}

Result<std::shared_ptr<void>> allocatePages(std::size_t bytes) {
  return allocateShared(wholePages(bytes));
}

}  // namespace shardwire::internal
