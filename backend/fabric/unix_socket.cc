// Sockets of type SOCK_SEQPACKET: each send is one message, and descriptors travel with the message. Names are
// abstract, so no file is left behind. Dialing a Unix socket succeeds or fails at once; a full queue of the listener is
// a separate case (kTimeout), in which the caller tries again. The receiver accepts the end of a connection only when
// it is seen twice, since Linux may report the end before the last message. Missing descriptors are an error, since a
// message without its descriptors is of no use.
#include "backend/fabric/unix_socket.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kMaxFds = 4;

struct Address {
  sockaddr_un text{};
  socklen_t size = 0;
};

Address abstractAddress(const std::string& name) {
  Address address;
  SW_CHECK(name.size() + 1 <= sizeof(address.text.sun_path));
  address.text.sun_family = AF_UNIX;
  std::memcpy(address.text.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Fd> makeSocket() {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.isOpen()) {
    return systemError(errno == EMFILE ? "a Unix socket (raise ulimit -n)" : "a Unix socket", errno);
  }
  socket.closeInChildren();
  return socket;
}

Status socketError(const char* what, int error) {
  if (error == EPIPE || error == ECONNRESET) {
    return {StatusCode::kPeerFailed, fmt::format("{}: the other end closed the connection", what)};
  }
  return systemError(what, error);
}

}  // namespace

Result<Fd> listenUnix(const std::string& name, int backlog) {
  auto socket = makeSocket();
  SW_RETURN_IF_ERROR(socket.status());
  const Address address = abstractAddress(name);
  if (::bind(socket->get(), reinterpret_cast<const sockaddr*>(&address.text), address.size) != 0 ||
      ::listen(socket->get(), backlog) != 0) {
    return systemError("listening on a Unix socket", errno);
  }
  return socket;
}

Result<Fd> acceptUnix(const Fd& listener, const WaitLimit& limit) {
  while (true) {
    SW_RETURN_IF_ERROR(limit.waitFor(listener, POLLIN, "accepting a peer"));
    Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.isOpen()) {
      socket.closeInChildren();
      return socket;
    }
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      return systemError(errno == EMFILE ? "accepting a peer (raise ulimit -n)" : "accepting a peer", errno);
    }
  }
}

Result<Fd> tryDialUnix(const std::string& name) {
  auto socket = makeSocket();
  SW_RETURN_IF_ERROR(socket.status());
  const Address address = abstractAddress(name);
  while (::connect(socket->get(), reinterpret_cast<const sockaddr*>(&address.text), address.size) != 0) {
    switch (errno) {
      case EINTR:
        continue;
      case ECONNREFUSED:
        return Fd();
      case EAGAIN:
        // A Unix socket connects at once or not at all; this error says that the listener's queue is full just now.
        return Status{StatusCode::kTimeout, "connecting to a Unix socket: the listener's queue stayed full"};
      default:
        return systemError("connecting to a Unix socket", errno);
    }
  }
  return socket;
}

Result<UnixPeer> unixPeer(const Fd& socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return systemError("asking who is at the other end of a Unix socket", errno);
  }
  return UnixPeer{credentials.pid, credentials.uid};
}

Status sendUnix(const Fd& socket, std::string_view bytes, std::span<const int> fds, const WaitLimit& limit) {
  SW_CHECK(!bytes.empty() && bytes.size() <= kMaxMessageBytes && fds.size() <= kMaxFds);
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  while (::sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN) {
      SW_RETURN_IF_ERROR(limit.waitFor(socket, POLLOUT, "sending to a peer"));
    } else if (!fds.empty() && (errno == ETOOMANYREFS || errno == ENOBUFS)) {
      // The kernel counts the descriptors that all processes of a user have sent, and their peers have not received.
      return Status{StatusCode::kTimeout, fmt::format("sending to a peer: too many descriptors of this user are under "
                                                      "way ({}; raise ulimit -n)",
                                                      errnoText(errno))};
    } else if (errno != EINTR) {
      return socketError("sending to a peer", errno);
    }
  }
  return Status::ok();
}

Result<UnixMessage> receiveUnix(const Fd& socket, const WaitLimit& limit) {
  constexpr const char* kWhat = "receiving from a peer";
  UnixMessage received;
  received.bytes.resize(kMaxMessageBytes);
  iovec piece{received.bytes.data(), received.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  msghdr message{};
  ssize_t size = 0;
  // The end counts only when seen twice. Linux looks for a message first and for the end afterwards: a message sent by
  // the peer between the two looks, before the peer closes, is in the queue behind an end (and a reset is reported
  // before messages that came ahead of the reset).
  for (int numEnds = 0; numEnds < 2;) {
    message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    size = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
    if (size > 0) {
      break;
    }
    if (size == 0 || errno == ECONNRESET) {
      ++numEnds;
    } else if (errno == EAGAIN) {
      SW_RETURN_IF_ERROR(limit.waitFor(socket, POLLIN, kWhat));
    } else if (errno != EINTR) {
      return socketError(kWhat, errno);
    }
  }
  if (size <= 0) {
    return socketError(kWhat, ECONNRESET);
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    for (std::size_t at = 0; at + sizeof(int) <= header->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof(int));
      received.fds.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Status{StatusCode::kSystem,
                  fmt::format("{}: its file descriptors did not all arrive (raise ulimit -n)", kWhat)};
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return Status{StatusCode::kMismatch, fmt::format("{}: a message of more than {} bytes", kWhat, kMaxMessageBytes)};
  }
  received.bytes.resize(static_cast<std::size_t>(size));
  return received;
}

}  // namespace shardwire::internal
