// The error of bytes that were changed on the way, as both streams of a connection report it. Pure; any thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "shardwire/status.h"

namespace shardwire::internal {

// Goes after the name of the peer. found: the checksum of the bytes that arrived; sent: the checksum that arrived.
inline Status changedBytes(std::string_view what, std::uint32_t found, std::uint32_t sent) {
  return {
      StatusCode::kMismatch,
      fmt::format("sent {}, and other bytes arrived (CRC-32C {:08x}, the sender's {:08x}): a network card, a router "
                  "or memory on the way changes bytes and corrects the TCP checksum; replace the device, or use "
                  "another interface (SHARDWIRE_SOCKET_IFNAME)",
                  what, found, sent)};
}

}  // namespace shardwire::internal
