// Gives each control frame of a peer to the part of the group that takes frames of this kind. Under the group's lock.
#pragma once

#include "backend/exec/group_state.h"

namespace shardwire::internal {

// Handles all frames that lie in the lane. Callers look first whether there is any.
void drainControl(GroupState& group, Rank peer);
// Handles the frames of the operation that came before its call.
void deliverEarly(GroupState& group, const Activity& activity);

}  // namespace shardwire::internal
