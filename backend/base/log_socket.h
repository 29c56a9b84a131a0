// Log lines through a socket instead of stderr, for a program with a log of its own. The reader needs no lock of a
// writer, and a writer never waits.
#pragma once

#include "backend/base/log.h"
#include "shardwire/export.h"

namespace shardwire::internal {

// `socket`: one end of a pair of local datagram sockets, never closed afterwards. Each line becomes a message, "<level>
// <pid> <text>". A line goes to stderr if the socket does not take the line at once. Errors go to stderr as well, since
// an error may be the last line of this process. -1: stderr only. Lines up to `level` are written. Any thread.
SHARDWIRE_EXPORT void sendLogTo(int socket, LogLevel level);

}  // namespace shardwire::internal
