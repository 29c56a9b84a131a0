// How fast bytes pass from one core of this host to another through a ring in memory, as staged payloads do: by
// ordinary stores, which leave the bytes in the writer's cache, and by stores past the caches. Which of the two is
// faster depends on the CPU. Any thread.
#pragma once

#include <cstddef>
#include <optional>

#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::size_t kHandOverBytes = std::size_t{2} << 20;

// Of kHandOverBytes.
struct HandOverTimes {
  Duration cached{};
  Duration streamed{};
  bool operator==(const HandOverTimes&) const = default;
};

// Whether staged payloads are to be stored past the caches.
bool streamingPays(const HandOverTimes& times);

// Measures with a second thread, in about 10 ms. nullopt where the host has one core, or where other work on the
// cores made the times worthless.
std::optional<HandOverTimes> measureHandOvers();

}  // namespace shardwire::internal
