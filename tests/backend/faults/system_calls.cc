// Each system call has one point with the test's fault. The linker calls the functions at the end of this file, and
// each asks fails() first. A call fails with the errno of the fault, or transfers fewer bytes. The calls that fail are
// drawn by their number, so a test draws the same calls each time. Only streams are cut short, since packets of Unix
// sockets carry descriptors.
#include "tests/backend/faults/system_calls.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/support/random.h"

namespace shardwire::testing {
namespace {

struct Point {
  std::atomic<bool> isOn{false};
  CallFault fault;  // constant while isOn
  std::atomic<std::uint64_t> numCalls{0};
  std::atomic<int> numFailed{0};
};

std::array<Point, static_cast<std::size_t>(SystemCall::kCount)> points;

Point& pointOf(SystemCall call) {
  return points[static_cast<std::size_t>(call)];
}

// Whether this call fails; `random`: a number for the length of a short transfer.
bool fails(SystemCall call, std::uint64_t* random) {
  Point& point = pointOf(call);
  if (!point.isOn.load(std::memory_order_acquire)) {
    return false;
  }
  const std::uint64_t number = point.numCalls.fetch_add(1);
  *random = mix64(number * 16 + static_cast<std::uint64_t>(call));
  if (number < point.fault.after || static_cast<int>(*random % 100) >= point.fault.percent) {
    return false;
  }
  if (point.numFailed.fetch_add(1) >= point.fault.most) {
    point.numFailed.fetch_sub(1);
    return false;
  }
  errno = point.fault.error;
  return true;
}

bool isShort(SystemCall call) {
  return pointOf(call).fault.error == 0;
}

// A message with the first bytes only.
class ShortMessage {
 public:
  ShortMessage(const msghdr& whole, std::uint64_t random)
      : message_(whole), pieces_(whole.msg_iov, whole.msg_iov + whole.msg_iovlen) {
    std::size_t left = 0;
    for (const iovec& each : pieces_) {
      left += each.iov_len;
    }
    left = left == 0 ? 0 : 1 + (random >> 8) % std::min<std::size_t>(left, 3000);
    for (iovec& each : pieces_) {
      each.iov_len = std::min(each.iov_len, left);
      left -= each.iov_len;
    }
    message_.msg_iov = pieces_.data();
  }
  msghdr* get() { return &message_; }

 private:
  msghdr message_;
  std::vector<iovec> pieces_;
};

// Descriptors that travel beside the bytes must not be lost.
bool mayCut(int socket) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

std::size_t shortened(std::size_t bytes, std::uint64_t random) {
  return bytes == 0 ? 0 : 1 + (random >> 8) % bytes;
}

}  // namespace

void failCalls(SystemCall call, const CallFault& fault) {
  Point& point = pointOf(call);
  point.fault = fault;
  point.isOn.store(true, std::memory_order_release);
}

int numFailed(SystemCall call) {
  return pointOf(call).numFailed.load();
}

// ---- what the linker calls in place of the library's functions

extern "C" {

ssize_t __real_sendmsg(int socket, const msghdr* message, int flags);
ssize_t __real_recvmsg(int socket, msghdr* message, int flags);
ssize_t __real_send(int socket, const void* bytes, std::size_t size, int flags);
ssize_t __real_recv(int socket, void* bytes, std::size_t size, int flags);
int __real_epoll_wait(int epoll, epoll_event* events, int most, int timeout);
int __real_memfd_create(const char* name, unsigned flags);
int __real_ftruncate(int fd, off_t size);
void* __real_mmap(void* at, std::size_t size, int protection, int flags, int fd, off_t offset);
int __real_socket(int domain, int type, int protocol);
int __real_accept4(int socket, sockaddr* address, socklen_t* size, int flags);
int __real_eventfd(unsigned count, int flags);
// std::thread::_M_start_thread(), which calls pthread_create() inside of the C++ library.
using ThreadState = std::unique_ptr<std::thread::_State>;
void __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(std::thread* self,
                                                                                                  ThreadState state,
                                                                                                  void (*depend)());

ssize_t __wrap_sendmsg(int socket, const msghdr* message, int flags) {
  std::uint64_t random = 0;
  if (!mayCut(socket) || !fails(SystemCall::kSend, &random)) {
    return __real_sendmsg(socket, message, flags);
  }
  return isShort(SystemCall::kSend) ? __real_sendmsg(socket, ShortMessage(*message, random).get(), flags) : -1;
}

ssize_t __wrap_recvmsg(int socket, msghdr* message, int flags) {
  std::uint64_t random = 0;
  if (!mayCut(socket) || !fails(SystemCall::kReceive, &random)) {
    return __real_recvmsg(socket, message, flags);
  }
  return isShort(SystemCall::kReceive) ? __real_recvmsg(socket, ShortMessage(*message, random).get(), flags) : -1;
}

ssize_t __wrap_send(int socket, const void* bytes, std::size_t size, int flags) {
  std::uint64_t random = 0;
  if (!mayCut(socket) || !fails(SystemCall::kSend, &random)) {
    return __real_send(socket, bytes, size, flags);
  }
  return isShort(SystemCall::kSend) ? __real_send(socket, bytes, shortened(size, random), flags) : -1;
}

ssize_t __wrap_recv(int socket, void* bytes, std::size_t size, int flags) {
  std::uint64_t random = 0;
  if (!mayCut(socket) || !fails(SystemCall::kReceive, &random)) {
    return __real_recv(socket, bytes, size, flags);
  }
  return isShort(SystemCall::kReceive) ? __real_recv(socket, bytes, shortened(size, random), flags) : -1;
}

int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  std::uint64_t random = 0;
  return fails(SystemCall::kEpollWait, &random) ? -1 : __real_epoll_wait(epoll, events, most, timeout);
}

int __wrap_memfd_create(const char* name, unsigned flags) {
  std::uint64_t random = 0;
  return fails(SystemCall::kMemfdCreate, &random) ? -1 : __real_memfd_create(name, flags);
}

int __wrap_ftruncate(int fd, off_t size) {
  std::uint64_t random = 0;
  return fails(SystemCall::kFtruncate, &random) ? -1 : __real_ftruncate(fd, size);
}

void* __wrap_mmap(void* at, std::size_t size, int protection, int flags, int fd, off_t offset) {
  std::uint64_t random = 0;
  return fd >= 0 && fails(SystemCall::kMapFile, &random) ? MAP_FAILED
                                                         : __real_mmap(at, size, protection, flags, fd, offset);
}

int __wrap_socket(int domain, int type, int protocol) {
  std::uint64_t random = 0;
  return fails(SystemCall::kSocket, &random) ? -1 : __real_socket(domain, type, protocol);
}

int __wrap_accept4(int socket, sockaddr* address, socklen_t* size, int flags) {
  std::uint64_t random = 0;
  return fails(SystemCall::kAccept, &random) ? -1 : __real_accept4(socket, address, size, flags);
}

int __wrap_eventfd(unsigned count, int flags) {
  std::uint64_t random = 0;
  return fails(SystemCall::kEventfd, &random) ? -1 : __real_eventfd(count, flags);
}

void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(std::thread* self,
                                                                                                  ThreadState state,
                                                                                                  void (*depend)()) {
  std::uint64_t random = 0;
  if (fails(SystemCall::kThread, &random)) {
    throw std::system_error(errno, std::generic_category());
  }
  __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(self, std::move(state),
                                                                                               depend);
}

}  // extern "C"

}  // namespace shardwire::testing
