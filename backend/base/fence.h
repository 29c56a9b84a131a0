// A full fence: no load and no store of this thread passes it, in either direction.
#pragma once

#include <atomic>

namespace shardwire::internal {

// ThreadSanitizer knows no fences, and GCC refuses to compile one for it. What is built with it is ordered by the atomics around.
inline void fullFence() {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace shardwire::internal
