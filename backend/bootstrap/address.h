// What a rank publishes in the store for the others to find it. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/base/random_id.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::uint32_t kAddressVersion = 1;

struct RankAddress {
  std::string bootId;  // of the running kernel: equal on all processes of one host, containers included
  std::string host;    // for messages
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
  std::string socketName;  // abstract Unix socket
  RandomId token;          // a secret; rank 0's is the group's
  // Not ok: this rank could not even start, and tells the others why.
  Status failure;
  friend bool operator==(const RankAddress&, const RankAddress&) = default;
};

std::string encodeAddress(const RankAddress& address);
// kMismatch for bytes that are no address, kUnsupported for another version's.
Result<RankAddress> decodeAddress(std::string_view bytes);

// This process's, with a new socket name and token.
Result<RankAddress> makeAddress();

std::string addressKey(Rank rank);  // "shardwire/3"

}  // namespace shardwire::internal
