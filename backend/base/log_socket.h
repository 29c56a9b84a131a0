// Lines of log by a socket in place of stderr, for a program that has a log of its own. Whoever reads them needs no lock of a writer, and a
// writer waits for nobody.
#pragma once

#include "backend/base/log.h"

namespace shardwire::internal {

// `socket`: one end of a pair of local datagram sockets, never closed afterwards; each line becomes a message, "<level> <pid> <text>". A
// line that it does not take at once, since nobody reads, goes to stderr, and so do errors, which may be the last line of this process. -1:
// stderr. Lines up to `level` are written. Any thread.
void sendLogTo(int socket, LogLevel level);

}  // namespace shardwire::internal
