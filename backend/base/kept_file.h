// Files that outlive the process and are found again by another: kernels and plans that were made before. A file is written beside its
// place and renamed, so a reader sees a whole one or none, whoever else writes and whoever is killed. Any thread, any process.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shardwire/status.h"

namespace shardwire::internal {

// `folder` is made where it is missing. kSystem where the system refuses; then there is no new file, and an old one is as it was.
Status writeKept(const std::string& folder, const std::string& name, std::string_view bytes);

// What the file holds. Nothing where it cannot be read, or is not a plain file that only this user or root can have written: what it holds
// is trusted.
std::optional<std::string> readKept(const std::string& path);

}  // namespace shardwire::internal
