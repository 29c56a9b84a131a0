// TCP sockets and their addresses, as far as both the links and the tcp transport need them. A socket is used by one thread at a time.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/base/fd.h"
#include "backend/base/wait_limit.h"
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

// Non-blocking, closed on exec; listens on this address only.
Result<Fd> listenTcp(const SocketAddress& address, int backlog);
// A connection that may still be on its way: writable once it is decided, and then socketError() tells how.
// `error`: errno where the connecting failed at once.
Result<Fd> startTcp(const SocketAddress& address, int* error = nullptr);
Result<Fd> acceptTcp(const Fd& listener);  // not open: nobody waits
// errno of what happened to the socket meanwhile; 0: nothing.
int socketError(const Fd& socket);
// Whether the other end of a TCP or Unix socket closed its side, without blocking.
bool isHungUp(const Fd& socket);
void sendAtOnce(const Fd& socket);  // no Nagle: frames are small, and somebody waits for them

// Ok when the socket is ready for `events` of poll(2), or broken: the call that follows tells. kTimeout at the deadline.
Status waitForSocket(const Fd& socket, short events, const WaitLimit& limit, std::string_view what);

}  // namespace shardwire::internal
