// Reports the state of this process over a Unix socket, <pid>.sock in statusFolder(), which only this user can open.
// Each connection gets one JSON text (status_json.h) and the end of the stream. The server has its own thread, which
// takes no GIL, and takes an engine's lock only for a moment. So a process that hangs in Python or in an operation
// still answers. One per process; any thread may call.
#pragma once

#include <string>

#include "shardwire/export.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// Returns the socket's path. The first call starts the server and removes sockets of dead processes from the folder.
SHARDWIRE_EXPORT Result<std::string> serveStatus();
// Ends the thread and removes the socket. Idempotent.
SHARDWIRE_EXPORT void stopServingStatus();
// $XDG_RUNTIME_DIR/shardwire, else /tmp/shardwire-<uid>.
std::string statusFolder();

}  // namespace shardwire::internal
