// Which of two ways moves bytes of ordinary memory sooner between ranks: reads across memories, or staging. This
// differs between CPUs, between sizes, and on some machines between one minute and the next. So a rank measures its own
// transfers of one kind: long messages of one size from one peer, or the runs of one plan. Guarded by the group's lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "shardwire/types.h"

namespace shardwire::internal {

class ReadOrStage {
 public:
  // Whether the transfer goes by reads; nothing, for the first one: the caller's rule decides. The next ones try both
  // ways. Later about one of 64 goes the slower way, which may be the faster one by now. `number` distinguishes
  // transfers: ranks that take part in the same transfers pass the same numbers, and so try the same way at once.
  std::optional<bool> nextIsRead(std::uint64_t number) {
    const std::uint64_t drawn = (number * kGolden) >> (64 - kTrialBits);
    if (isKnown()) {
      return (of(true).time < of(false).time) != (drawn == 0);
    }
    return std::exchange(isFirst_, false) ? std::nullopt : std::optional(drawn % 2 != 0);
  }
  // A transfer took this long: of one size, or nanoseconds for each byte.
  void note(bool wasRead, double took) {
    Way& way = of(wasRead);
    // Other work of the ranks only makes a transfer longer, and may make one transfer much longer.
    const bool isShorter = way.numNoted == 0 || took < way.time;
    way.time = isShorter ? took : way.time + std::min(took - way.time, way.time) / kSlowness;
    way.numNoted += way.numNoted < kFirstOfEach ? 1 : 0;
  }

 private:
  static constexpr std::uint64_t kGolden = 0x9E37'79B9'7F4A'7C15;
  static constexpr int kTrialBits = 6;
  static constexpr unsigned kFirstOfEach = 4;
  static constexpr unsigned kFewOfEach = 2;  // the very first transfer may have met fresh pages
  static constexpr double kClearly = 1.5;
  static constexpr double kSlowness = 8;

  struct Way {
    double time = 0;
    unsigned numNoted = 0;  // up to kFirstOfEach
  };
  bool isKnown() const {
    const unsigned fewer = std::min(ways_[0].numNoted, ways_[1].numNoted);
    const auto [shorter, longer] = std::minmax(ways_[0].time, ways_[1].time);
    return fewer >= kFirstOfEach || (fewer >= kFewOfEach && longer >= kClearly * shorter);
  }
  Way& of(bool isRead) { return ways_[isRead ? 1 : 0]; }

  std::array<Way, 2> ways_{};
  bool isFirst_ = true;
};

}  // namespace shardwire::internal
