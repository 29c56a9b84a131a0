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
