// Pages of this process's heap that peers may write to: a part of a symmetric block, or what one attaches. Nothing else lies in them, so
// that a page that is made writable for a peer holds nothing but what it may write.
#pragma once

#include <cstddef>
#include <memory>

#include "shardwire/status.h"

namespace shardwire::internal {

// The size to ask of the heap for `bytes`: what it gives then begins with a page and shares none.
std::size_t wholePages(std::size_t bytes);
// wholePages(bytes) bytes, uninitialised; given back with the last owner. kSystem when the heap is full. Any thread.
Result<std::shared_ptr<void>> allocatePages(std::size_t bytes);

}  // namespace shardwire::internal
