// A JSON value in the format of Python's pickle (protocol 2): dict, list, str, int, float, bool, None. Pure. Any
// thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwire::internal {

std::string pickled(const nlohmann::json& value);

}  // namespace shardwire::internal
