// The name of this host, for messages. Any thread.
#pragma once

#include <string>

namespace shardwire::internal {

// Empty when the system gives none: messages are still understood.
std::string hostName();

}  // namespace shardwire::internal
