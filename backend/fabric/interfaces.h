// The network interfaces of this host, and the interfaces chosen by a setting such as "eth,ib0". Any thread.
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
  int prefixBits = 0;       // of the address's subnet
  bool isIpv6 = false;
  bool isLoopback = false;
  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
};

Result<std::vector<InterfaceAddress>> listInterfaces();

// Inode of the calling thread's network namespace; abstract Unix sockets do not reach beyond the namespace, and each
// namespace has its own interfaces. 0: the kernel does not report the inode.
std::uint64_t networkNamespace();

// "eth,ib0": by prefix; "=eth0": exactly; "^docker,lo", "^=eth0": all but the named interfaces; empty: all, without
// docker's bridges if there is another interface. Loopback is included only if named, or if nothing else is left. Best
// first: IPv4 before IPv6, then link-local addresses, loopback last. Empty when no interface fits.
std::vector<InterfaceAddress> chooseInterfaces(const std::vector<InterfaceAddress>& all, std::string_view choice);

// "eth0 (10.0.0.1), lo (127.0.0.1)": for messages.
std::string toString(const std::vector<InterfaceAddress>& interfaces);

// Whether `ip` lies in a subnet of one of these interfaces.
bool isInSubnet(const std::vector<InterfaceAddress>& interfaces, const std::string& ip);
bool isLinkLocal(std::string_view ip);

}  // namespace shardwire::internal
