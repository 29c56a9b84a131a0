#include "backend/base/log.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

namespace shardwire::internal {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames = {"error", "warn", "info", "debug"};
constexpr int kNotRead = -1;
std::atomic<int> currentLevel{kNotRead};
std::atomic<int> logSocket{-1};

bool isSent(std::string_view levelName, std::string_view text) {
  const int socket =
      logSocket.load(std::memory_order_relaxed);  // the socket stays open, so an older value does no harm
  if (socket < 0) {
    return false;
  }
  const std::string message = fmt::format("{} {} {}", levelName, ::getpid(), text);
  return ::send(socket, message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(message.size());
}

LogLevel readLevel() {
  const char* text = ::getenv("SHARDWIRE_LOG");
  if (text == nullptr || *text == '\0') {
    return LogLevel::kWarn;
  }
  const std::optional<LogLevel> level = parseLogLevel(text);
  if (!level) {
    writeLogLine(LogLevel::kWarn,
                 fmt::format("SHARDWIRE_LOG={} is not one of error, warn, info, debug; using warn", text));
  }
  return level.value_or(LogLevel::kWarn);
}

}  // namespace

std::optional<LogLevel> parseLogLevel(std::string_view text) {
  const auto found = std::ranges::find(kLevelNames, text);
  if (found == kLevelNames.end()) {
    return std::nullopt;
  }
  return static_cast<LogLevel>(found - kLevelNames.begin());
}

LogLevel logLevel() {
  if (currentLevel.load(std::memory_order_relaxed) == kNotRead) {  // a lone value: publishes no other data
    rereadLogLevel();
  }
  return static_cast<LogLevel>(currentLevel.load(std::memory_order_relaxed));
}

void rereadLogLevel() {
  setLogLevel(readLevel());
}

void setLogLevel(LogLevel level) {
  currentLevel.store(static_cast<int>(level), std::memory_order_relaxed);
}

void sendLogTo(int socket, LogLevel level) {
  logSocket.store(socket, std::memory_order_relaxed);
  setLogLevel(level);
}

void writeLogLine(LogLevel level, std::string_view text) {
  const std::string_view name = kLevelNames[static_cast<std::size_t>(level)];
  if (level != LogLevel::kError && isSent(name, text)) {
    return;
  }
  std::string line = fmt::format("shardwire {} [{}]: {}", name, ::getpid(), text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  // If stderr is closed, there is no place to report the error.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace shardwire::internal
