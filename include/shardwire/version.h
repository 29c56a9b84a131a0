// The library's version. CMakeLists.txt fails where the version differs from the project's.
#pragma once

#include <string_view>

namespace shardwire {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace shardwire
