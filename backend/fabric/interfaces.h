// The network interfaces of this host, and which of them a setting such as "eth,ib0" chooses. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/status.h"

namespace shardwire::internal {

// One address of an interface that is up.
struct InterfaceAddress {
  std::string interface;    // "eth0"
  std::string ip;           // "10.0.0.1", "fe80::1"
  std::uint32_t scope = 0;  // of a link-local IPv6 address
  int prefixBits = 0;       // of its subnet
  bool isIpv6 = false;
  bool isLoopback = false;
  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
};

Result<std::vector<InterfaceAddress>> listInterfaces();

// Inode of the calling thread's; abstract Unix sockets reach no further, and interfaces are its own. 0: the kernel does not tell.
std::uint64_t networkNamespace();

// "eth,ib0": by prefix; "=eth0": exactly; "^docker,lo", "^=eth0": all but those; empty: all, but for docker's bridges when there is
// another. Loopback only when it is named, or nothing else is left. Best first: IPv4 before IPv6, link-local ones after those, loopback
// last. Empty when none fits.
std::vector<InterfaceAddress> chooseInterfaces(const std::vector<InterfaceAddress>& all, std::string_view choice);

// "eth0 (10.0.0.1), lo (127.0.0.1)": for messages.
std::string toString(const std::vector<InterfaceAddress>& interfaces);

// Whether `ip` lies in a subnet of one of these.
bool isInSubnet(const std::vector<InterfaceAddress>& interfaces, const std::string& ip);
bool isLinkLocal(std::string_view ip);

}  // namespace shardwire::internal
