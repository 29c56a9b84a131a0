// Waits for this process's requests to peers. Any thread; costs one load where there were no requests.
#pragma once

#include "shardwire/status.h"

namespace shardwire::internal {

// Waits in all groups of this process, since a barrier of one group may complete writes of another group. Returns the
// first failure after waiting for all. A failure that was returned once is not returned again.
Status quietAll();
// Whether quietAll() returns without waiting.
bool isAllQuiet();

}  // namespace shardwire::internal
