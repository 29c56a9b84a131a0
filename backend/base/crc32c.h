// CRC-32C (Castagnoli's polynomial, as in iSCSI, SCTP and ext4), by the CPU's instruction where this build has one.
// Packaged libraries were considered: Debian has CRC-32C in ISA-L only, which would be one more package for every user.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardwire::internal {

// The checksum of `size` bytes. `before`: the checksum of the bytes before these, to continue from there.
std::uint32_t crc32c(const void* bytes, std::size_t size, std::uint32_t before = 0);

// The same without the instruction, on every CPU.
std::uint32_t crc32cByTable(const void* bytes, std::size_t size, std::uint32_t before = 0);

}  // namespace shardwire::internal
