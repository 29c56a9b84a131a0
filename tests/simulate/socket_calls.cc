// The linker calls these functions in place of the library's (tests/CMakeLists.txt, --wrap). A call on a descriptor of
// the kernel goes to the kernel, and so does each call while there is no simulation.
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/simulate/sockets.h"

namespace shardwire::simulate {
namespace {

// False: the descriptor is the kernel's.
bool sendSimulated(int fd, const std::string& bytes, int flags, ssize_t* taken) {
  int error = 0;
  if (!Sockets::current()->send(fd, bytes, (flags & MSG_DONTWAIT) != 0, taken, &error)) {
    return false;
  }
  errno = error;
  return true;
}

ssize_t orReset(int fd, ssize_t size) {
  if (size != 0 || Sockets::current() == nullptr || !Sockets::current()->isReset(fd)) {
    return size;
  }
  errno = ECONNRESET;
  return -1;
}

}  // namespace

extern "C" {

int __real_socket(int domain, int type, int protocol);
int __real_bind(int fd, const sockaddr* address, socklen_t size);
int __real_listen(int fd, int backlog);
int __real_connect(int fd, const sockaddr* address, socklen_t size);
int __real_accept4(int fd, sockaddr* address, socklen_t* size, int flags);
int __real_getsockname(int fd, sockaddr* address, socklen_t* size);
int __real_getpeername(int fd, sockaddr* address, socklen_t* size);
int __real_getsockopt(int fd, int level, int name, void* value, socklen_t* size);
ssize_t __real_send(int fd, const void* bytes, std::size_t size, int flags);
ssize_t __real_sendmsg(int fd, const msghdr* message, int flags);
ssize_t __real_recv(int fd, void* bytes, std::size_t size, int flags);
ssize_t __real_recvmsg(int fd, msghdr* message, int flags);
int __real_shutdown(int fd, int how);
int __real_poll(pollfd* entries, nfds_t count, int timeout);
int __real_close(int fd);
int __real_ioctl(int fd, unsigned long request, void* value);

int __wrap_socket(int domain, int type, int protocol) {
  int fd = -1;
  return Sockets::current() != nullptr && Sockets::current()->make(domain, type, &fd)
             ? fd
             : __real_socket(domain, type, protocol);
}

int __wrap_bind(int fd, const sockaddr* address, socklen_t size) {
  return Sockets::current() != nullptr && Sockets::current()->isNew(fd) ? 0 : __real_bind(fd, address, size);
}

int __wrap_listen(int fd, int backlog) {
  return Sockets::current() != nullptr && Sockets::current()->listen(fd) ? 0 : __real_listen(fd, backlog);
}

int __wrap_connect(int fd, const sockaddr* address, socklen_t size) {
  int result = 0;
  return Sockets::current() != nullptr && Sockets::current()->connect(fd, address, &result)
             ? result
             : __real_connect(fd, address, size);
}

int __wrap_accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  int accepted = -1;
  return Sockets::current() != nullptr && Sockets::current()->accept(fd, &accepted)
             ? accepted
             : __real_accept4(fd, address, size, flags);
}

int __wrap_getsockname(int fd, sockaddr* address, socklen_t* size) {
  return Sockets::current() != nullptr && Sockets::current()->address(fd, false, address, size)
             ? 0
             : __real_getsockname(fd, address, size);
}

int __wrap_getpeername(int fd, sockaddr* address, socklen_t* size) {
  return Sockets::current() != nullptr && Sockets::current()->address(fd, true, address, size)
             ? 0
             : __real_getpeername(fd, address, size);
}

int __wrap_getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  int error = 0;
  Time silent = 0;
  if (Sockets::current() != nullptr && level == SOL_SOCKET && name == SO_ERROR &&
      Sockets::current()->error(fd, &error)) {
    std::memcpy(value, &error, sizeof error);
    return 0;
  }
  if (Sockets::current() != nullptr && level == IPPROTO_TCP && name == TCP_INFO &&
      Sockets::current()->silence(fd, &silent)) {
    tcp_info info{};
    info.tcpi_retransmits = silent > 0 ? 1 : 0;
    info.tcpi_last_ack_recv = static_cast<std::uint32_t>(silent / kMillisecond);
    if (int bytes = 0; Sockets::current()->unacknowledged(fd, &bytes)) {
      info.tcpi_unacked = bytes > 0 ? 1 : 0;
    }
    std::memcpy(value, &info, std::min<std::size_t>(*size, sizeof info));
    return 0;
  }
  return __real_getsockopt(fd, level, name, value, size);
}

ssize_t __wrap_send(int fd, const void* bytes, std::size_t size, int flags) {
  ssize_t taken = 0;
  return Sockets::current() != nullptr &&
                 sendSimulated(fd, std::string(static_cast<const char*>(bytes), size), flags, &taken)
             ? taken
             : __real_send(fd, bytes, size, flags);
}

ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  ssize_t taken = 0;
  std::string bytes;
  for (std::size_t i = 0; Sockets::current() != nullptr && i < message->msg_iovlen; ++i) {
    bytes.append(static_cast<const char*>(message->msg_iov[i].iov_base), message->msg_iov[i].iov_len);
  }
  return Sockets::current() != nullptr && sendSimulated(fd, bytes, flags, &taken) ? taken
                                                                                  : __real_sendmsg(fd, message, flags);
}

ssize_t __wrap_recv(int fd, void* bytes, std::size_t size, int flags) {
  return orReset(fd, __real_recv(fd, bytes, size, flags));
}

ssize_t __wrap_recvmsg(int fd, msghdr* message, int flags) {
  return orReset(fd, __real_recvmsg(fd, message, flags));
}

int __wrap_shutdown(int fd, int how) {
  return Sockets::current() != nullptr && Sockets::current()->shutDown(fd) ? 0 : __real_shutdown(fd, how);
}

int __wrap_poll(pollfd* entries, nfds_t count, int timeout) {
  if (Sockets::current() != nullptr && count == 1 && Sockets::current()->isConnecting(entries->fd)) {
    entries->revents = 0;
    return 0;
  }
  return __real_poll(entries, count, timeout);
}

int __wrap_ioctl(int fd, unsigned long request, void* value) {
  int bytes = 0;
  if (Sockets::current() == nullptr || request != SIOCOUTQ || !Sockets::current()->unacknowledged(fd, &bytes)) {
    return __real_ioctl(fd, request, value);
  }
  std::memcpy(value, &bytes, sizeof bytes);
  return 0;
}

int __wrap_close(int fd) {
  if (Sockets::current() != nullptr) {
    Sockets::current()->closed(fd);
  }
  return __real_close(fd);
}

}  // extern "C"

}  // namespace shardwire::simulate
