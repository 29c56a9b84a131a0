// Looks for peers that died and for operations that reached the deadline, once in a millisecond. Under the group's
// lock.
#pragma once

#include <vector>

#include "backend/exec/group_state.h"

namespace shardwire::internal {

// Longest sleep of a waiter: bounds how late a death or a deadline is noticed.
inline constexpr Duration kMaxSleep = std::chrono::milliseconds(10);
// How often these checks are made, at most.
inline constexpr Duration kSlowCheckEvery = std::chrono::milliseconds(1);

// `quiet`: the poll before this moved nothing.
void checkSlow(GroupState& group, bool quiet);
// The error for gone peers.
Status goneError(const GroupState& group, const std::vector<Rank>& gone);

}  // namespace shardwire::internal
