// How often this process asked for memory: malloc and its kin are replaced for the whole program. operator new comes
// here too.
#pragma once

#include <cstdint>

namespace shardwire::bench {

// malloc, calloc, realloc, aligned_alloc and posix_memalign calls so far, by all threads. 0 for ever under a sanitizer
// or without glibc.
std::uint64_t numAllocations();

}  // namespace shardwire::bench
