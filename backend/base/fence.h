// A full fence: no load and no store of this thread passes it, in either direction.
#pragma once

#include <atomic>

namespace shardwire::internal {

// ThreadSanitizer does not know fences, and GCC refuses to compile a fence for ThreadSanitizer. In such builds the
// atomics around the fence provide the order.
inline void fullFence() {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace shardwire::internal
