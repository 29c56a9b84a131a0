// System calls that fail when a test asks for a failure. The linker gives the test program other functions in place of
// the C library's (tests/CMakeLists.txt, --wrap), so the product has no fault points. Any thread; each
// process has its own faults.
#pragma once

#include <cstdint>
#include <limits>

namespace shardwire::testing {

enum class SystemCall {
  kSend,         // sendmsg, send
  kReceive,      // recvmsg, recv
  kEpollWait,    // epoll_wait
  kMemfdCreate,  // memfd_create
  kFtruncate,    // ftruncate
  kMapFile,      // mmap of a descriptor
  kSocket,       // socket
  kAccept,       // accept4
  kEventfd,      // eventfd
  kThread,       // pthread_create, by std::thread
  kCount,
};

struct CallFault {
  int error = 0;                               // errno; 0: a short transfer, of at least one byte
  int percent = 100;                           // of the calls
  int most = std::numeric_limits<int>::max();  // the number of failures
  std::uint64_t after = 0;                     // calls before the first failure
};

// Before this every call goes to the kernel unchanged.
void failCalls(SystemCall call, const CallFault& fault);
// The calls that have failed, or were cut short.
int numFailed(SystemCall call);

}  // namespace shardwire::testing
