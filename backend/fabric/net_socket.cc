// Thin calls of the kernel's TCP sockets: non-blocking, closed on exec and in forked children, with Nagle's delay off,
// and with probes of silent hosts. Addresses of both families share one struct, so callers do not distinguish the
// families. Accepting distinguishes three cases: this process has no descriptor left (an error that the user can fix),
// the listener is broken, or no connection is there now, which includes connections that ended before they were
// accepted.
#include "backend/fabric/net_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr const char* kMultipath = "SHARDWIRE_TCP_MULTIPATH";
constexpr int kIdleSeconds = 3;
constexpr int kNumProbes = 5;

const std::string& multipathText() {
  static const std::string text = [] {
    const char* const given = std::getenv(kMultipath);
    return std::string(given == nullptr || *given == '\0' ? "0" : given);
  }();
  return text;
}

Result<Fd> makeTcp(int family) {
  if (multipathText() != "0" && !isMultipath()) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}={}: give 0 or 1", kMultipath, multipathText()));
  }
  Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, isMultipath() ? IPPROTO_MPTCP : IPPROTO_TCP));
  if (!socket.isOpen() && isMultipath() && errno != EMFILE) {
    return systemError(fmt::format("making a socket of Multipath TCP, which {}=1 demands (Linux 5.16 or newer with "
                                   "sysctl net.mptcp.enabled=1)",
                                   kMultipath),
                       errno);
  }
  if (!socket.isOpen()) {
    return systemError(errno == EMFILE ? "making a TCP socket (raise ulimit -n)" : "making a TCP socket", errno);
  }
  socket.closeInChildren();
  return socket;
}

template <typename Ask>
Result<SocketAddress> askAddress(const Fd& socket, Ask ask) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (ask(socket.get(), address.get(), &address.size) != 0) {
    return systemError("asking for a socket's address", errno);
  }
  return address;
}

}  // namespace

bool isMultipath() {
  return multipathText() == "1";
}

std::uint16_t SocketAddress::port() const {
  const bool isIpv6 = storage.ss_family == AF_INET6;
  return ntohs(isIpv6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                      : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void SocketAddress::setPort(std::uint16_t port) {
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
}

Result<SocketAddress> makeSocketAddress(const std::string& ip, std::uint32_t scope, std::uint16_t port) {
  SocketAddress address;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (::inet_pton(AF_INET, ip.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    std::memcpy(&address.storage, &v4, sizeof(v4));
    address.size = sizeof(v4);
  } else if (::inet_pton(AF_INET6, ip.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_scope_id = scope;
    std::memcpy(&address.storage, &v6, sizeof(v6));
    address.size = sizeof(v6);
  } else {
    return Status{StatusCode::kInvalidArgument, fmt::format("'{}' is no IP address", ip)};
  }
  address.setPort(port);
  return address;
}

std::string toString(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.storage.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), address.port());
  }
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
    const std::string scope = v6->sin6_scope_id == 0 ? "" : fmt::format("%{}", v6->sin6_scope_id);
    return fmt::format("[{}{}]:{}", text.data(), scope, address.port());
  }
  return "an unnamed socket";
}

Result<SocketAddress> localAddress(const Fd& socket) {
  return askAddress(socket, ::getsockname);
}

Result<SocketAddress> remoteAddress(const Fd& socket) {
  return askAddress(socket, ::getpeername);
}

Result<Fd> listenTcp(const SocketAddress& address, int backlog) {
  auto socket = makeTcp(address.storage.ss_family);
  SW_RETURN_IF_ERROR(socket.status());
  if (::bind(socket->get(), address.get(), address.size) != 0 || ::listen(socket->get(), backlog) != 0) {
    return systemError(fmt::format("listening on {}", toString(address)), errno);
  }
  return socket;
}

Result<Fd> startTcp(const SocketAddress& address, int* error) {
  auto socket = makeTcp(address.storage.ss_family);
  SW_RETURN_IF_ERROR(socket.status());
  sendAtOnce(*socket);
  setKeepAlive(*socket, true);
  if (::connect(socket->get(), address.get(), address.size) != 0 && errno != EINPROGRESS && errno != EINTR) {
    const int why = errno;
    if (error != nullptr) {
      *error = why;
    }
    return systemError("connecting", why);
  }
  return socket;
}

Result<Fd> acceptTcp(const Fd& listener) {
  Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.isOpen()) {
    socket.closeInChildren();
    sendAtOnce(socket);
    setKeepAlive(socket, true);
    return socket;
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return systemError("accepting a peer (raise ulimit -n)", errno);
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
      return systemError("accepting a peer", errno);
    // No connection waits, or the waiting connection is gone: accept(2) also reports errors of the connection to be
    // accepted.
    default:
      return Fd();
  }
}

int socketError(const Fd& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

bool isHungUp(const Fd& socket) {
  pollfd entry{socket.get(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

void sendAtOnce(const Fd& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // without this option only slower
}

void setKeepAlive(const Fd& socket, bool isOn) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, kNumProbes);
  set(SOL_SOCKET, SO_KEEPALIVE, isOn ? 1 : 0);
}

}  // namespace shardwire::internal
