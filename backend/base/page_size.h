// The size of the kernel's pages: 4096 bytes on x86-64, up to 65536 on aarch64. The same for all processes of a
// machine.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace shardwire::internal {

inline std::size_t pageBytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

inline std::size_t inWholePages(std::size_t bytes) {
  return (bytes + pageBytes() - 1) / pageBytes() * pageBytes();
}

}  // namespace shardwire::internal
