// Unix sockets with abstract names (no file ever): datagrams in order, with file descriptors, and the kernel's
// statement about the process at the other end. Every call that waits takes a limit. A socket is used by one thread at
// a time.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/wait_limit.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::size_t kMaxMessageBytes = 8192;
inline constexpr std::size_t kMaxUnixNameBytes = 100;

struct UnixMessage {
  std::string bytes;
  std::vector<Fd> fds;
};

// The process at the other end, as reported by the kernel; the pid is 0 when the process has none in our pid namespace.
struct UnixPeer {
  pid_t pid = 0;
  uid_t uid = 0;
};

// `name` without the leading zero byte.
Result<Fd> listenUnix(const std::string& name, int backlog);
Result<Fd> acceptUnix(const Fd& listener, const WaitLimit& limit);
// Without waiting. Not open: no process listens there. kTimeout: a process listens, and too many connections wait there
// already.
Result<Fd> tryDialUnix(const std::string& name);
Result<UnixPeer> unixPeer(const Fd& socket);

Status sendUnix(const Fd& socket, std::string_view bytes, std::span<const int> fds, const WaitLimit& limit);
// kPeerFailed when the other end closed; kTimeout at the deadline; kMismatch for a message that is too long or has too
// many descriptors.
Result<UnixMessage> receiveUnix(const Fd& socket, const WaitLimit& limit);

}  // namespace shardwire::internal
