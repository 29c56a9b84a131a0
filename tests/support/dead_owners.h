// Whether the kernel marks the robust mutexes of threads that ended: on a kernel without this, nothing finds a process
// dead in shared memory. qemu-user passes no list of mutexes to its kernel. Header only.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <string>

namespace shardwire::testing {

// Empty where the kernel marks them, else the reason.
inline std::string whyNoDeadOwners() {
  robust_list_head* head = nullptr;
  std::size_t bytes = 0;
  if (::syscall(SYS_get_robust_list, 0, &head, &bytes) == 0 && head != nullptr) {
    return "";
  }
  return std::string("the kernel marks no mutexes of threads that ended (get_robust_list): ") + ::strerror(errno);
}

}  // namespace shardwire::testing
