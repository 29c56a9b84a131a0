// The size of the kernel's pages: 4096 bytes on x86-64, up to 65536 on aarch64. The same for all processes of a
// machine.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace shardwire::internal {

// The next multiple of `unit`, a power of two.
constexpr std::size_t roundUp(std::size_t value, std::size_t unit) {
  return (value + unit - 1) & ~(unit - 1);
}

inline std::size_t pageBytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

inline std::size_t inWholePages(std::size_t bytes) {
  return roundUp(bytes, pageBytes());
}

// Bytes of this machine's memory.
inline std::size_t machineBytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * pageBytes();
}

}  // namespace shardwire::internal
