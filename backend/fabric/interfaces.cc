// An interface counts when it is up and running, and each of its IPv4 and IPv6 addresses is a separate entry. The
// user's choice is a list of names with two marks: '^' excludes, '=' compares whole names instead of prefixes. Without
// a choice loopback and docker's bridges are used only when there is nothing else. Peers try the addresses in the order
// of the result. Subnets are compared as bytes in network order, so one function serves both families.
#include "backend/fabric/interfaces.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <optional>
#include <span>

#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

// An address as bytes in network order; empty: neither IPv4 nor IPv6.
struct IpBytes {
  std::array<unsigned char, 16> bytes{};
  std::size_t size = 0;
};

IpBytes bytesOf(const sockaddr* address) {
  IpBytes ip;
  const auto take = [&](const void* from, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(from);
    std::copy_n(bytes, size, ip.bytes.begin());
    ip.size = size;
  };
  if (address != nullptr && address->sa_family == AF_INET) {
    take(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
  } else if (address != nullptr && address->sa_family == AF_INET6) {
    take(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 16);
  }
  return ip;
}

IpBytes bytesOf(const std::string& text) {
  IpBytes ip;
  if (::inet_pton(AF_INET, text.c_str(), ip.bytes.data()) == 1) {
    ip.size = 4;
  } else if (::inet_pton(AF_INET6, text.c_str(), ip.bytes.data()) == 1) {
    ip.size = 16;
  }
  return ip;
}

int prefixBitsOf(const IpBytes& mask) {
  int bits = 0;
  for (std::size_t i = 0; i < mask.size; ++i) {
    bits += std::popcount(mask.bytes[i]);
  }
  return bits;
}

bool sharesPrefix(const IpBytes& a, const IpBytes& b, int bits) {
  if (a.size != b.size) {
    return false;
  }
  for (std::size_t i = 0; bits > 0 && i < a.size; ++i, bits -= 8) {
    const int shift = bits >= 8 ? 0 : 8 - bits;
    if ((a.bytes[i] >> shift) != (b.bytes[i] >> shift)) {
      return false;
    }
  }
  return true;
}

std::optional<InterfaceAddress> addressOf(const ifaddrs& entry) {
  const IpBytes ip = bytesOf(entry.ifa_addr);
  if (ip.size == 0 || (entry.ifa_flags & IFF_UP) == 0 || (entry.ifa_flags & IFF_RUNNING) == 0) {
    return std::nullopt;
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  InterfaceAddress address;
  address.isIpv6 = ip.size == 16;
  ::inet_ntop(address.isIpv6 ? AF_INET6 : AF_INET, ip.bytes.data(), text.data(), text.size());
  address.interface = entry.ifa_name;
  address.ip = text.data();
  address.prefixBits = prefixBitsOf(bytesOf(entry.ifa_netmask));
  address.isLoopback = (entry.ifa_flags & IFF_LOOPBACK) != 0;
  if (address.isIpv6 && isLinkLocal(address.ip)) {
    address.scope = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_scope_id;
  }
  return address;
}

struct Choice {
  bool isExcluding = false;
  bool isExact = false;
  std::vector<std::string_view> names;

  bool takes(const std::string& interface) const {
    const bool isNamed = std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      return isExact ? interface == name : std::string_view(interface).starts_with(name);
    });
    return isNamed != isExcluding;
  }
};

Choice parseChoice(std::string_view text) {
  Choice choice;
  if (text.starts_with('^')) {
    choice.isExcluding = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('=')) {
    choice.isExact = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    if (end > 0) {
      choice.names.push_back(text.substr(0, end));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return choice;
}

int worth(const InterfaceAddress& address) {
  return (address.isLoopback ? 4 : 0) + (isLinkLocal(address.ip) ? 2 : 0) + (address.isIpv6 ? 1 : 0);
}

// Docker's own bridges have the same address on every host, so a dialer would reach its own host.
bool isLastResort(const InterfaceAddress& address) {
  return address.isLoopback || address.interface.starts_with("docker");
}

}  // namespace

bool isLinkLocal(std::string_view ip) {
  const IpBytes bytes = bytesOf(std::string(ip));
  return bytes.size == 16 && bytes.bytes[0] == 0xfe && (bytes.bytes[1] & 0xc0) == 0x80;
}

Result<std::vector<InterfaceAddress>> listInterfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return systemError("listing the network interfaces", errno);
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (auto address = addressOf(*entry)) {
      all.push_back(std::move(*address));
    }
  }
  return all;
}

std::uint64_t networkNamespace() {
  struct stat status {};
  return ::stat("/proc/thread-self/ns/net", &status) == 0 ? status.st_ino : 0;
}

std::vector<InterfaceAddress> chooseInterfaces(const std::vector<InterfaceAddress>& all, std::string_view choice) {
  std::vector<InterfaceAddress> chosen;
  const Choice parsed = parseChoice(choice);
  if (parsed.names.empty()) {
    const bool anyOrdinary = std::any_of(all.begin(), all.end(), [](const auto& each) { return !isLastResort(each); });
    const bool anyBridge = std::any_of(all.begin(), all.end(), [](const auto& each) { return !each.isLoopback; });
    std::copy_if(all.begin(), all.end(), std::back_inserter(chosen), [&](const InterfaceAddress& each) {
      return anyOrdinary ? !isLastResort(each) : !anyBridge || !each.isLoopback;
    });
  } else {
    std::copy_if(all.begin(), all.end(), std::back_inserter(chosen),
                 [&](const InterfaceAddress& each) { return parsed.takes(each.interface); });
    const bool anyOther = std::any_of(chosen.begin(), chosen.end(), [](const auto& each) { return !each.isLoopback; });
    if (parsed.isExcluding && anyOther) {  // loopback was not asked for by name
      std::erase_if(chosen, [](const auto& each) { return each.isLoopback; });
    }
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return worth(a) < worth(b); });
  return chosen;
}

std::string toString(const std::vector<InterfaceAddress>& interfaces) {
  std::string text;
  for (const InterfaceAddress& each : interfaces) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", each.interface, each.ip);
  }
  return text.empty() ? "none" : text;
}

bool isInSubnet(const std::vector<InterfaceAddress>& interfaces, const std::string& ip) {
  const IpBytes theirs = bytesOf(ip);
  return theirs.size > 0 && std::any_of(interfaces.begin(), interfaces.end(), [&](const InterfaceAddress& each) {
           return sharesPrefix(bytesOf(each.ip), theirs, each.prefixBits);
         });
}

}  // namespace shardwire::internal
