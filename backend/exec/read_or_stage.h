// Which of two ways moves a long message of ordinary memory sooner between two ranks: a read across memories, or
// staging. This differs between CPUs, between sizes, and on some machines between one minute and the next. So the
// receiver measures its own messages. Guarded by the group's lock.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "shardwire/types.h"

namespace shardwire::internal {

class ReadOrStage {
 public:
  // Whether to read the next message of this size. The first messages of a size go both ways in turns, and later each
  // kTrialEvery-th message goes the slower way, which may be the faster one by now.
  bool nextIsRead(std::size_t bytes) {
    Size& size = sizeOf(bytes);
    const unsigned number = size.numMessages++;
    const bool isTrial = number % kTrialEvery == kTrialEvery - 1;
    return number < kFirst ? number % 2 != 0 : (size.perByte[kRead] < size.perByte[kStage]) != isTrial;
  }
  // A message took this long from its match to its last byte.
  void note(std::size_t bytes, bool wasRead, Duration took) {
    double& known = sizeOf(bytes).perByte[wasRead ? kRead : kStage];
    const double now = static_cast<double>(took.count()) / static_cast<double>(bytes);
    // Other work of the sender or the receiver only makes a message longer, and may make one message much longer.
    known = known == 0 || now < known ? now : known + std::min(now - known, known) / kSlowness;
  }

 private:
  static constexpr std::size_t kRead = 0, kStage = 1;
  static constexpr unsigned kFirst = 8;
  static constexpr unsigned kTrialEvery = 64;
  static constexpr double kSlowness = 8;
  static constexpr std::size_t kNumSizes = 32;

  struct Size {
    std::array<double, 2> perByte{};  // nanoseconds; 0: not measured
    unsigned numMessages = 0;
  };
  // Sizes of one power of two count as one.
  Size& sizeOf(std::size_t bytes) { return sizes_[std::bit_width(bytes) % kNumSizes]; }

  std::array<Size, kNumSizes> sizes_{};
};

}  // namespace shardwire::internal
