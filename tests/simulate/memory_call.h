// Operations without tensors of a collective: requests to the memory of other ranks, as symmetric memory makes them
// between hosts (one_sided.h), and exchanges of bytes of any length.
#pragma once

#include <memory>

#include "tests/simulate/call.h"

namespace shardwire::simulate {

// Each rank puts, gets and adds words in the parts of other ranks, with many requests under way, and then waits until
// all requests are done.
std::unique_ptr<Call> makeRequestsCall(const Operation& operation, Rank rank, int numRanks);
std::unique_ptr<Call> makeExchangeCall(const Operation& operation, Rank rank, int numRanks);

}  // namespace shardwire::simulate
