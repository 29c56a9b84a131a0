#include "backend/fabric/listening_ports.h"

#include <fmt/format.h>

#include <utility>

#include "backend/base/log.h"
#include "backend/fabric/net_socket.h"

namespace shardwire::internal {
namespace {

// Further addresses of a host are not offered: hosts of containers have hundreds.
constexpr std::size_t kMaxAddresses = 16;
// Dialers that wait in the kernel for this process to accept them: many may arrive at once, wanted or not.
constexpr int kBacklog = 4096;

}  // namespace

Result<ListeningPorts> listenOnInterfaces(const std::vector<InterfaceAddress>& interfaces, const Options& options) {
  ListeningPorts made;
  std::string whyNot;
  for (const InterfaceAddress& each : chooseInterfaces(interfaces, options.socketIfname)) {
    if (made.sockets.size() == kMaxAddresses) {
      logInfo("this host has more addresses than {}: {} ({}) and what follows are not offered", kMaxAddresses,
              each.interface, each.ip);
      break;
    }
    if (isMultipath() && isLinkLocal(each.ip)) {  // such sockets do not report the interface of the address
      whyNot +=
          fmt::format("; {}: Multipath TCP needs another address than the link-local {}", each.interface, each.ip);
      continue;
    }
    const auto address = makeSocketAddress(each.ip, each.scope, 0);
    SW_RETURN_IF_ERROR(address.status());
    auto socket = listenTcp(*address, kBacklog);
    if (!socket.isOk()) {  // an address may just be appearing or disappearing
      whyNot += fmt::format("; {}: {}", each.interface, socket.status().message());
      continue;
    }
    const auto bound = localAddress(*socket);
    SW_RETURN_IF_ERROR(bound.status());
    made.addresses.push_back({each.ip, each.scope, bound->port(), each.interface});
    made.sockets.push_back(std::move(*socket));
  }
  if (made.sockets.empty()) {
    return Status{
        StatusCode::kUnsupported,
        fmt::format(
            "no network interface to listen on{}{}; this host has {}",
            options.socketIfname.empty() ? "" : fmt::format(" fits SHARDWIRE_SOCKET_IFNAME={}", options.socketIfname),
            whyNot, toString(interfaces))};
  }
  return made;
}

}  // namespace shardwire::internal
