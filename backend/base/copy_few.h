// Copies of a few bytes in place: for one element the call of the C library takes longer than the copy. Any thread.
#pragma once

#include <cstddef>
#include <cstring>

namespace shardwire::internal {

// memcpy(); `bytes` may be 0, and then the pointers may be null.
inline void copyFew(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 4) {
    std::memcpy(to, from, 4);
  } else if (bytes == 8) {
    std::memcpy(to, from, 8);
  } else if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace shardwire::internal
