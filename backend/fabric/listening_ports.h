// The ports where a process listens for other processes: one TCP port on each address of the interfaces that
// SHARDWIRE_SOCKET_IFNAME chooses, and on no other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/fabric/interfaces.h"
#include "shardwire/options.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// An address of one of this host's interfaces, and the port there.
struct NetAddress {
  std::string ip;           // "10.0.0.1", "fe80::1"
  std::uint32_t scope = 0;  // of a link-local IPv6 address, on the owner's host
  std::uint16_t port = 0;
  std::string interface;  // "eth0"
  friend bool operator==(const NetAddress&, const NetAddress&) = default;
};

// Both lists are in the same order, best first: IPv4 before IPv6, non-loopback before loopback.
struct ListeningPorts {
  std::vector<Fd> sockets;
  std::vector<NetAddress> addresses;
};

// Listens on the interfaces among `interfaces` that options.socketIfname chooses; on loopback only when nothing else is
// up, or when loopback is named. kUnsupported, with a list of the present interfaces, when none is left.
Result<ListeningPorts> listenOnInterfaces(const std::vector<InterfaceAddress>& interfaces, const Options& options);

}  // namespace shardwire::internal
