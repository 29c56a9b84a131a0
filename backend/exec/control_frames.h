// Gives each control frame of a peer to the part of the group that takes frames of this kind. Under the group's lock.
#pragma once

#include "backend/exec/group_state.h"

namespace shardwire::internal {

// Handles all frames in the lane. Callers first check whether the lane has a frame.
void drainControl(GroupState& group, Rank peer);
// Handles the frames of the operation from before the call.
void deliverEarly(GroupState& group, const Activity& activity);

}  // namespace shardwire::internal
