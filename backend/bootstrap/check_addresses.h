// Checks of all ranks' addresses before any connection exists: whether the addresses belong to ranks of one group that
// can be joined. Every rank reads the same addresses, so all ranks report the same error with the same words. Pure
// functions. Any thread.
#pragma once

#include <string>
#include <vector>

#include "backend/bootstrap/address.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// "rank 1 (pid 7 on host a)"
std::string nameOf(Rank rank, const RankAddress& address);
// Both names, the lower rank first.
std::string pairText(Rank a, const RankAddress& first, Rank b, const RankAddress& second);

// kMismatch, with both names, when the two ranks were started with different world sizes.
Status checkWorldSize(Rank a, const RankAddress& first, Rank b, const RankAddress& second);
// Whether the store still holds the address that rank `rank` published; kMismatch names the process that claims the
// same rank.
Status checkOwnAddress(Rank rank, const RankAddress& own, const std::string& published, const std::string& stored);
// kMismatch when SHARDWIRE_JOB_TOKEN is set for some ranks and not for others. kUnsupported when the token is not set,
// and a rank has no Unix socket over which ranks of the same user and host could ask for its process's secret.
Status checkJobTokens(const std::vector<RankAddress>& addresses);
// kUnsupported, with all reasons, for the first pair that no transport joins.
Status checkPairs(const std::vector<RankAddress>& addresses);

// Whether the kernel can vouch for each process to the other: each sees the other's Unix sockets, and a user's number
// means the same to both.
bool isOneUserOnOneHost(const RankAddress& a, const RankAddress& b);
// The warning of rank `self`: a foreign process that reads the store could join. Empty: no warning is needed, or a
// lower rank of the same user and host warns. The warning is not left to rank 0, since a foreign process may have
// written rank 0's address.
std::string foreignProcessWarning(Rank self, const std::vector<RankAddress>& addresses);

}  // namespace shardwire::internal
