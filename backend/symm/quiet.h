// What this process requested of peers is done. Any thread; costs one load where nothing was requested.
#pragma once

#include "shardwire/status.h"

namespace shardwire::internal {

// In all groups of this process, since a barrier of one may end what was written by another. The first failure, after all were waited for;
// one that was told here once is not told again.
Status quietAll();
// Whether quietAll() returns without waiting.
bool isAllQuiet();

}  // namespace shardwire::internal
