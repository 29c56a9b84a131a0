// How the kernels store moves larger than the caches, and payloads staged for another core: measured once on a host for
// each instruction set, kept in memory of the host (/dev/shm) until the host starts anew, and read from there by later
// processes. Any thread, any process; two at once both measure. The choices change no bit, only speed.
#pragma once

#include <optional>
#include <string>

#include "backend/communicator/hand_over.h"
#include "ops/reduce/isa_kernels.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// Times of one copy out of memory and into memory, by the way of storing, each at the slowest distance of destination
// and source.
struct LargeStoreTimes {
  Duration ahead{};
  Duration stream{};
  Duration pair{};
  bool operator==(const LargeStoreTimes&) const = default;
};

// The way of storing to use. Ordinary stores must be much faster: the lines they leave in the cache are written to
// memory later, which the measured time does not contain.
RowStore fastestLargeStore(const LargeStoreTimes& times);

// Measures the kernels in use; about 10 ms.
LargeStoreTimes measureLargeStores();

// The folder of this user and host. An entry there is trusted only if this user or root wrote it.
std::string hostChoicesFolder();

// The times of the kernels in use: from `folder`, else measured and kept there.
LargeStoreTimes largeStoreTimes(const std::string& folder);

// Likewise. nullopt where the times could not be measured now: nothing is kept.
std::optional<HandOverTimes> handOverTimes(const std::string& folder);

// From now on the kernels store as the times of this host say. Only the first call in a process does anything.
void chooseStores();

// kInvalidArgument when SHARDWIRE_ISA names no instruction set. A set that this CPU does not have is legal, since the
// hosts of a job may differ.
Status checkIsaVariable();

// One line: the instruction set and its reason, how large moves and staged payloads are stored, and the measured rates.
std::string describeKernels();

}  // namespace shardwire::internal
