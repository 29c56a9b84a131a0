// Files that outlive the process and are found by later processes: kernels and plans made before. A file is written
// under another name and then renamed, so a reader sees a complete file or none, even with several writers and killed
// writers. Any thread, any process.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shardwire/export.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// A missing `folder` is made. kSystem where the system refuses; then there is no new file, and an old file is
// unchanged.
SHARDWIRE_EXPORT Status writeKept(const std::string& folder, const std::string& name, std::string_view bytes);

// The bytes of the file. nullopt where the file cannot be read, or is not a plain file that only this user or root can
// have written, since the bytes are trusted.
SHARDWIRE_EXPORT std::optional<std::string> readKept(const std::string& path);

}  // namespace shardwire::internal
