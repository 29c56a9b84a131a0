// A file that appears whole: written beside its place and renamed, so that a reader sees all of it or none, whoever else writes and whoever
// is killed. Any thread, any process, any machine that shares the folder.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "shardwire/status.h"

namespace shardwire::internal {

// How the names of files end that are not whole yet. A writer that is killed leaves one.
inline constexpr std::string_view kUnfinishedEnding = ".tmp";

enum class Lasting : unsigned char {
  kWhileTheSystemRuns,
  kThroughACrash,  // of the machine: waits until the disk has the bytes
};

// Replaces what was there; for this user alone (mode 0600). kSystem with the step and errno, without the path; then an old file is as it
// was.
Status writeWhole(const std::string& path, std::string_view bytes, Lasting lasting);

// The next `size` bytes of a file; kSystem with errno, or where it ends before.
Result<std::string> readAll(int fd, std::size_t size);

}  // namespace shardwire::internal
