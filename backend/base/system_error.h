// errno as text, and as a Status. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <system_error>

#include "shardwire/status.h"

namespace shardwire::internal {

// "Operation not permitted (EPERM)"
std::string errnoText(int error);

// kSystem: "<what>: <errnoText>"
Status systemError(std::string_view what, int error);

// kSystem: "<what>: <errnoText>", and the limits to raise. For a thread that std::thread could not start.
Status threadError(std::string_view what, const std::system_error& error);

}  // namespace shardwire::internal
