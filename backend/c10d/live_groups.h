// The groups of this process, for the shutdown at interpreter exit: no Python callback on a future may run after the
// exit. The groups that torch's C++ makes from a group (split, merge) are among these groups. Any thread.
#pragma once

#include "backend/c10d/process_group_shardwire.h"

namespace shardwire::internal {

// Does not keep the group alive.
void addLiveGroup(const c10::intrusive_ptr<ProcessGroupShardwire>& group);
// shutdown() of each group. Throws the first exception after the last group.
SHARDWIRE_EXPORT void shutdownLiveGroups();

}  // namespace shardwire::internal
