// The library's version. CMakeLists.txt fails where it is not the project's.
#pragma once

#include <string_view>

namespace shardwire {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace shardwire
