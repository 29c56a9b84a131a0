// Tells whoever asks what this process does: a Unix socket, <pid>.sock in statusFolder(), that only its user can open; who connects gets
// one JSON text (status_json.h) and the end of the stream. A thread of its own answers, which takes neither the GIL nor, for longer than a
// moment, an engine's lock: a process that hangs in Python or in an operation still answers. One per process; any thread may call.
#pragma once

#include <string>

#include "shardwire/status.h"

namespace shardwire::internal {

// The socket's path. Begins to serve when nobody did yet; what processes that are gone left in the folder is removed.
Result<std::string> serveStatus();
// Ends the thread and removes the socket. Idempotent.
void stopServingStatus();
// $XDG_RUNTIME_DIR/shardwire, else /tmp/shardwire-<uid>.
std::string statusFolder();

}  // namespace shardwire::internal
