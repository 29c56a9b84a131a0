// The pause of a spin loop between two polls: a hint to the CPU.
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

}  // namespace shardwire::internal
