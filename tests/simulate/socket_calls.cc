// The linker calls these functions in place of the library's (tests/CMakeLists.txt, --wrap).
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>

#include "tests/simulate/sockets.h"

namespace shardwire::simulate {

extern "C" {

int __real_socket(int domain, int type, int protocol);
int __real_connect(int fd, const sockaddr* address, socklen_t size);
int __real_accept4(int fd, sockaddr* address, socklen_t* size, int flags);
int __real_getsockopt(int fd, int level, int name, void* value, socklen_t* size);
ssize_t __real_send(int fd, const void* bytes, std::size_t size, int flags);
int __real_poll(pollfd* entries, nfds_t count, int timeout);
int __real_close(int fd);

int __wrap_socket(int domain, int type, int protocol) {
  int fd = -1;
  return Sockets::current() != nullptr && Sockets::current()->make(domain, type, &fd)
             ? fd
             : __real_socket(domain, type, protocol);
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

int __wrap_getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  int error = 0;
  if (Sockets::current() == nullptr || level != SOL_SOCKET || name != SO_ERROR ||
      !Sockets::current()->error(fd, &error)) {
    return __real_getsockopt(fd, level, name, value, size);
  }
  std::memcpy(value, &error, sizeof error);
  return 0;
}

ssize_t __wrap_send(int fd, const void* bytes, std::size_t size, int flags) {
  int error = 0;
  if (Sockets::current() == nullptr || !Sockets::current()->send(fd, bytes, size, &error)) {
    return __real_send(fd, bytes, size, flags);
  }
  errno = error;
  return error == 0 ? static_cast<ssize_t>(size) : -1;
}

int __wrap_poll(pollfd* entries, nfds_t count, int timeout) {
  if (Sockets::current() != nullptr && count == 1 && Sockets::current()->isConnecting(entries->fd)) {
    entries->revents = 0;
    return 0;
  }
  return __real_poll(entries, count, timeout);
}

int __wrap_close(int fd) {
  if (Sockets::current() != nullptr) {
    Sockets::current()->closed(fd);
  }
  return __real_close(fd);
}

}  // extern "C"

}  // namespace shardwire::simulate
