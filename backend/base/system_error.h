// errno as text, and as a Status. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "shardwire/status.h"

namespace shardwire::internal {

// "Operation not permitted (EPERM)"
std::string errnoText(int error);

// kSystem: "<what>: <errnoText>"
Status systemError(std::string_view what, int error);

}  // namespace shardwire::internal
