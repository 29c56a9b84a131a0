// Bytes as text, for golden tests of wire formats.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace shardwire::testing {

inline std::string toHex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

}  // namespace shardwire::testing
