// What the addresses of all ranks tell before anybody is connected: whether they are ranks of one group that can be joined. Every rank
// reads the same addresses, so all come to the same error with the same words. Pure functions. Any thread.
#pragma once

#include <string>
#include <vector>

#include "backend/bootstrap/address.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// "rank 1 (pid 7 on host a)"
std::string nameOf(Rank rank, const RankAddress& address);
// Both, the lower rank first.
std::string pairText(Rank a, const RankAddress& first, Rank b, const RankAddress& second);

// kMismatch, naming both, when two ranks were told other world sizes.
Status checkWorldSize(Rank a, const RankAddress& first, Rank b, const RankAddress& second);
// Whether the store still holds what rank `rank` published there; kMismatch naming who calls itself the same rank.
Status checkOwnAddress(Rank rank, const RankAddress& own, const std::string& published, const std::string& stored);
// kMismatch when SHARDWIRE_JOB_TOKEN is set for some ranks and not for others. kUnsupported when it is not set, and a rank has no Unix
// socket over which ranks of its user and host could ask for its process's secret.
Status checkJobTokens(const std::vector<RankAddress>& addresses);
// kUnsupported, with all reasons, for the first pair that no transport joins.
Status checkPairs(const std::vector<RankAddress>& addresses);

// Whether the kernel can vouch for one to the other: they see each other's Unix sockets, and a user's number means the same to both.
bool isOneUserOnOneHost(const RankAddress& a, const RankAddress& b);
// What rank `self` should warn of: a foreign process that reads the store could join. Empty: no warning, or a lower rank of the same user
// and host gives it. Not left to rank 0, since a foreign process may have written rank 0's address.
std::string strangerWarning(Rank self, const std::vector<RankAddress>& addresses);

}  // namespace shardwire::internal
