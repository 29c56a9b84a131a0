// How fast bytes pass from one core of this host to another through a ring in memory, as staged payloads do, by three
// ways of copying. Which of them is the fastest depends on the CPU. Any thread.
#pragma once

#include <cstddef>
#include <optional>

#include "ops/reduce/isa_kernels.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::size_t kHandOverBytes = std::size_t{2} << 20;

// Of kHandOverBytes. The reader fetches ahead. The bytes stay in the writer's cache, where the writer fetches ahead as
// well or copies plainly, or the writer stores them past its cache.
struct HandOverTimes {
  Duration ahead{};
  Duration plain{};
  Duration streamed{};
  bool operator==(const HandOverTimes&) const = default;
};

// How copies that stay in the caches are made: kAhead or kPlain.
RowStore fastestCachedStore(const HandOverTimes& times);
// Whether staged payloads are to be stored past the caches.
bool streamingPays(const HandOverTimes& times);

// Measures with a second thread, in about 10 ms. nullopt where the host has one core, or where other work on the
// cores made the times worthless.
std::optional<HandOverTimes> measureHandOvers();

}  // namespace shardwire::internal
