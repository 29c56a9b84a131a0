// Waits for this process's requests to peers. Any thread; costs one load where there were no requests.
#pragma once

#include <optional>

#include "shardwire/export.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// Waits in all groups of this process, since a barrier of one group may complete writes of another group. Returns the
// first failure after waiting for all. A failure that was returned once is not returned again. timeout: of each group's
// wait, and fails the group; absent: the group's.
SHARDWIRE_EXPORT Status quietAll(std::optional<Duration> timeout = std::nullopt);
// Whether quietAll() returns without waiting.
SHARDWIRE_EXPORT bool isAllQuiet();

}  // namespace shardwire::internal
