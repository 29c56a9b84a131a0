// What a spin loop does between two looks: tells the CPU that it spins.
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
