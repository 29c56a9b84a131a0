// SHA-256, for keys and checksums of files that outlive the process, which must not be mistaken for others. Pure; any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shardwire::internal {

using Digest = std::array<std::uint8_t, 32>;

// Digest of all parts in order, each with its length: {"a", "b"} and {"ab"} differ.
Digest digestOf(std::span<const std::string_view> parts);
Digest digestOf(std::span<const std::string> parts);

inline std::string_view asText(const Digest& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
// 64 digits.
std::string hexOf(const Digest& digest);

}  // namespace shardwire::internal
