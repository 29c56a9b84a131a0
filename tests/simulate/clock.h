// Simulated time. The linker gives these programs another std::chrono::steady_clock::now() (tests/CMakeLists.txt,
// --wrap), so the product reads the ordinary clock and has no parameter for a clock. On a thread with simulated time
// the clock shows this time, and on every other thread the time of the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shardwire/types.h"

namespace shardwire::simulate {

// Nanoseconds since the begin of the process's first simulation.
using Time = std::int64_t;
inline constexpr Time kMicrosecond = 1000;
inline constexpr Time kMillisecond = 1000 * kMicrosecond;
inline constexpr Time kSecond = 1000 * kMillisecond;
inline constexpr Time kNever = std::int64_t{1} << 62;

// Inside this scope the calling thread reads and spends `time`: a look at the clock takes half a microsecond, with the
// polls that the product makes between two looks, and an offer of the core one microsecond. So loops that spin by the
// clock end.
class SimulatedTime {
 public:
  // `sleep(t)`: the thread sleeps for t.
  SimulatedTime(Time* time, const std::function<void(Time)>* sleep);
  ~SimulatedTime();
  SimulatedTime(const SimulatedTime&) = delete;
  SimulatedTime& operator=(const SimulatedTime&) = delete;

 private:
  Time* const before_;
  const std::function<void(Time)>* const sleepBefore_;
};

// The deadline of the product as a time; kNoDeadline is kNever.
Time timeOf(Deadline deadline);
// "12.345678 ms".
std::string inMilliseconds(Time time);

}  // namespace shardwire::simulate
