// SHA-256, for what must not be mistaken for anything else: keys and checksums of files that outlive the process. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shardwire::internal {

using Digest = std::array<std::uint8_t, 32>;

// Of all parts in order, each with its length: {"a", "b"} and {"ab"} differ.
Digest digestOf(std::span<const std::string_view> parts);
Digest digestOf(std::span<const std::string> parts);

inline std::string_view asText(const Digest& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
// 64 digits.
std::string hexOf(const Digest& digest);

}  // namespace shardwire::internal
