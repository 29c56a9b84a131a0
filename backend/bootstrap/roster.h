// The entries written into a group's store before the ranks are connected: an address under each rank's key, and the
// roster, one entry with all addresses, which rank 0 writes for groups of many ranks. One thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/bootstrap/gathering.h"

namespace shardwire::internal {

// Up to this number of ranks, every rank reads every address.
inline constexpr int kFewAddresses = 4;
inline constexpr const char* kRosterKey = "shardwire/roster";

// The value of a key now, without waiting; nothing when the key has none. If the store does not answer, the group
// records this.
Result<std::optional<std::string>> askStore(Gathering& group, const std::string& key);
Status putStore(Gathering& group, const std::string& key, std::string_view value);

// Whether all ranks take the addresses that rank 0 read, so that all have the same addresses. Otherwise each rank reads
// the addresses alone.
bool usesRoster(const Gathering& group);
Status writeRoster(Gathering& group);
// The roster's addresses by rank; nothing when the roster does not contain this rank's present address.
std::optional<std::vector<std::string>> rosterWith(const Gathering& group, const std::string& bytes);
// Whether the store has everything needed by readAddresses(). A rank that has read everything may have finished and
// exited normally.
bool isAllPublished(Gathering& group);

}  // namespace shardwire::internal
