// TCP sockets and addresses: the part needed by both the links and the tcp transport. A socket is used by one thread at
// a time.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "backend/base/fd.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  std::uint16_t port() const;
  void setPort(std::uint16_t port);
};

// kInvalidArgument for a text that is no IPv4 or IPv6 address.
Result<SocketAddress> makeSocketAddress(const std::string& ip, std::uint32_t scope, std::uint16_t port);
// "10.0.0.1:80", "[fe80::1%2]:80"
std::string toString(const SocketAddress& address);
Result<SocketAddress> localAddress(const Fd& socket);
Result<SocketAddress> remoteAddress(const Fd& socket);

// Whether new sockets are of Multipath TCP (SHARDWIRE_TCP_MULTIPATH, read once).
bool isMultipath();
// Non-blocking, closed on exec; listens on this address only.
Result<Fd> listenTcp(const SocketAddress& address, int backlog);
// Starts a connection, which may still be under way: the socket becomes writable once the outcome is decided, and then
// socketError() returns the outcome. `error`: errno if the connection failed at once. The socket has keepalive probes.
Result<Fd> startTcp(const SocketAddress& address, int* error = nullptr);
Result<Fd> acceptTcp(const Fd& listener);  // not open: no connection is waiting. Otherwise as startTcp()
// errno of the socket's pending error; 0: none.
int socketError(const Fd& socket);
// Whether the other end of a TCP or Unix socket closed its side, without blocking.
bool isHungUp(const Fd& socket);
void sendAtOnce(const Fd& socket);  // no Nagle: frames are small, and a peer waits for each
// Probes after 3 s without traffic, one a second. A host that answers none of five is gone: ETIMEDOUT.
void setKeepAlive(const Fd& socket, bool isOn);

}  // namespace shardwire::internal
