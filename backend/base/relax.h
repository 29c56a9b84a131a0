// Hints to the CPU: the pause of a spin loop between two polls, and a line to be written soon.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shardwire::internal {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Fetches the cache line at `line` and takes the line from other cores, without waiting. The address may be any.
inline void fetchForWriting(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" : : "r"(line));  // __builtin_prefetch gives this only under -mprfchw
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace shardwire::internal
