#include "bench/count_allocations.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

namespace {
std::atomic<std::uint64_t> count{0};
}  // namespace

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {

// glibc's names for its own functions.
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t number, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
// NOLINTEND(bugprone-reserved-identifier)

void* malloc(std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t number, std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(number, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  *memory = __libc_memalign(alignment, bytes);
  return *memory != nullptr ? 0 : ENOMEM;
}

}  // extern "C"
#endif

namespace shardwire::bench {

std::uint64_t numAllocations() {
  return count.load(std::memory_order_relaxed);
}

}  // namespace shardwire::bench
