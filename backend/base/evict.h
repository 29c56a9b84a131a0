// Removes the lines of a buffer from all caches of the machine, so that the next access goes to memory. For measuring
// speeds of memory with a small buffer. On processors other than x86-64 and ARM64 the lines stay.
#pragma once

#include <cstddef>
#include <span>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shardwire::internal {

inline void evict(std::span<const std::byte> buffer) {
  [[maybe_unused]] constexpr std::size_t kLineBytes = 64;
#if defined(__x86_64__)
  for (std::size_t at = 0; at < buffer.size(); at += kLineBytes) {
    _mm_clflush(buffer.data() + at);
  }
  _mm_mfence();
#elif defined(__aarch64__)
  for (std::size_t at = 0; at < buffer.size(); at += kLineBytes) {
    asm volatile("dc civac, %0" : : "r"(buffer.data() + at) : "memory");
  }
  asm volatile("dsb sy" : : : "memory");
#endif
}

}  // namespace shardwire::internal
