#include "tests/simulate/direction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "backend/exec/frame.h"

namespace shardwire::simulate {

using namespace internal;

Time Direction::lastArrival() const {
  Time last = 0;
  for (const LaneQueue& lane : lanes) {
    last = std::max(last, lane.lastArrival);
  }
  return last;
}

std::size_t Direction::Fetch::size() const {
  return std::accumulate(runs.begin(), runs.end(), std::size_t{0},
                         [](std::size_t sum, const internal::MemoryRun& run) { return sum + run.bytes; });
}

void Direction::loseFramesUnderWay(Time now) {
  std::uint64_t lastArrived = lastTaken;
  for (const LaneQueue& lane : lanes) {
    for (const Frame& frame : lane.frames) {
      lastArrived = frame.arrives <= now ? std::max(lastArrived, frame.number) : lastArrived;
    }
  }
  for (LaneQueue& lane : lanes) {
    for (Frame& frame : lane.frames) {
      frame.arrives = frame.number > lastArrived ? kNever : frame.arrives;
    }
  }
}

std::string describeFrame(std::span<const std::byte> frame) {
  const std::optional<FrameKind> kind = kindOf(frame);
  if (!kind.has_value()) {
    return "an unreadable frame";
  }
  std::string text(frameKindName(*kind));
  const bool isOfOperation = *kind <= FrameKind::kCancel || *kind == FrameKind::kStaged;
  if (isOfOperation && frame.size() >= sizeof(FrameStart) + sizeof(std::uint64_t)) {
    std::uint64_t seq = 0;
    std::memcpy(&seq, frame.data() + sizeof(FrameStart), sizeof seq);
    text += fmt::format(" of activity {}", seq);
  }
  return text;
}

}  // namespace shardwire::simulate
