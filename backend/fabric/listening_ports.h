// Where a process listens for others: one TCP port on each address of the interfaces that SHARDWIRE_SOCKET_IFNAME chooses, and on no other.
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
  std::uint32_t scope = 0;  // of a link-local IPv6 address, on the host that owns it
  std::uint16_t port = 0;
  std::string interface;  // "eth0"
  friend bool operator==(const NetAddress&, const NetAddress&) = default;
};

// At equal places of both, best first: IPv4 before IPv6, non-loopback before loopback.
struct ListeningPorts {
  std::vector<Fd> sockets;
  std::vector<NetAddress> addresses;
};

// On those of `interfaces` that options.socketIfname chooses; loopback only when nothing else is up, or asked for by name. kUnsupported,
// listing the interfaces there are, when none is left.
Result<ListeningPorts> listenOnInterfaces(const std::vector<InterfaceAddress>& interfaces, const Options& options);

}  // namespace shardwire::internal
