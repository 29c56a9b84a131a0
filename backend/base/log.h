// One line of text to stderr for people: logInfo("rank {}: connected", rank). SHARDWIRE_LOG=error|warn|info|debug says
// how much; the default is warn. Any thread: a line is one write(), so lines of threads and ranks never mix.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "shardwire/export.h"

namespace shardwire::internal {

enum class LogLevel : unsigned char { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

SHARDWIRE_EXPORT std::optional<LogLevel> parseLogLevel(std::string_view text);

// Read from the environment on first use.
SHARDWIRE_EXPORT LogLevel logLevel();
void setLogLevel(LogLevel level);
// Reads SHARDWIRE_LOG again.
void rereadLogLevel();
inline bool isLogged(LogLevel level) {
  return level <= logLevel();
}

// Writes "shardwire <level> [pid]: <text>\n"; line breaks inside the text become spaces.
SHARDWIRE_EXPORT void writeLogLine(LogLevel level, std::string_view text);

// Lines through a socket instead of stderr, for a program with a log of its own. The reader needs no lock of a writer,
// and a writer never waits. `socket`: one end of a pair of local datagram sockets, never closed afterwards. Each line
// becomes a message, "<level> <pid> <text>". A line goes to stderr if the socket does not take the line at once. Errors
// go to stderr as well, since an error may be the last line of this process. -1: stderr only. Lines up to `level` are
// written. Any thread.
SHARDWIRE_EXPORT void sendLogTo(int socket, LogLevel level);

// Nothing is formatted when the level is off.
template <typename... Args>
void logAt(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (isLogged(level)) {
    writeLogLine(level, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void logError(fmt::format_string<Args...> format, Args&&... args) {
  logAt(LogLevel::kError, format, std::forward<Args>(args)...);
}
template <typename... Args>
void logWarn(fmt::format_string<Args...> format, Args&&... args) {
  logAt(LogLevel::kWarn, format, std::forward<Args>(args)...);
}
template <typename... Args>
void logInfo(fmt::format_string<Args...> format, Args&&... args) {
  logAt(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void logDebug(fmt::format_string<Args...> format, Args&&... args) {
  logAt(LogLevel::kDebug, format, std::forward<Args>(args)...);
}

}  // namespace shardwire::internal
