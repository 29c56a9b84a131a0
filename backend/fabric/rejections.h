// Lines of log about rejected connections. Foreign processes may dial as often as they like, and must not fill the log:
// ten lines in a minute are written at their level, the others at level debug, and the next written line counts them.
// One thread, or guarded.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "backend/base/log.h"
#include "shardwire/types.h"

namespace shardwire::internal {

class Rejections {
 public:
  static constexpr int kMostLines = 10;
  static constexpr Duration kPeriod = std::chrono::minutes(1);

  template <typename... Args>
  void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    if (isLogged(level)) {
      write(level, fmt::format(format, std::forward<Args>(args)...), Clock::now());
    }
  }

 private:
  void write(LogLevel level, std::string_view text, Deadline now) {
    if (now >= begun_ + kPeriod) {
      begun_ = now;
      numWritten_ = 0;
    }
    if (level == LogLevel::kDebug || numWritten_ == kMostLines) {
      numLeftOut_ += level == LogLevel::kDebug ? 0 : 1;
      return logDebug("{}", text);
    }
    ++numWritten_;
    const std::uint64_t leftOut = std::exchange(numLeftOut_, 0);
    leftOut == 0 ? writeLogLine(level, text)
                 : logAt(level, "{} ({} more were rejected before, without a line)", text, leftOut);
  }

  Deadline begun_{};
  int numWritten_ = 0;
  std::uint64_t numLeftOut_ = 0;
};

}  // namespace shardwire::internal
