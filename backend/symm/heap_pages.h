// Pages of this process's heap that peers may write to: a part of a symmetric block, or attached pages. The pages hold
// nothing else, so a page that is writable for a peer holds only bytes that the peer may write.
#pragma once

#include <cstddef>
#include <memory>

#include "shardwire/export.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// The size to allocate from the heap for `bytes`: such a block begins with a page and shares no page.
SHARDWIRE_EXPORT std::size_t wholePages(std::size_t bytes);
// wholePages(bytes) bytes, uninitialised; given back with the last owner. kSystem when the heap is full. Any thread.
SHARDWIRE_EXPORT Result<std::shared_ptr<void>> allocatePages(std::size_t bytes);

}  // namespace shardwire::internal
