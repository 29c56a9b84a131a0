// A file that appears complete: written under another name and then renamed, so a reader sees the complete file or
// none, even with several writers and killed writers. Any thread, any process, any machine that shares the folder.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "shardwire/status.h"

namespace shardwire::internal {

// The ending of the names of incomplete files. A killed writer leaves such a file.
inline constexpr std::string_view kUnfinishedEnding = ".tmp";

enum class Lasting : unsigned char {
  kWhileTheSystemRuns,
  kThroughACrash,  // of the machine: waits until the disk has the bytes
};

// Replaces the old file; readable for this user alone (mode 0600). kSystem with the step and errno, without the path;
// then an old file is unchanged.
Status writeWhole(const std::string& path, std::string_view bytes, Lasting lasting);

// The next `size` bytes of a file; kSystem with errno, or where the file ends before.
Result<std::string> readAll(int fd, std::size_t size);

}  // namespace shardwire::internal
