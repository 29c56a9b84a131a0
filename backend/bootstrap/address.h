// What a rank publishes in the store for the others to find it. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/random_id.h"
#include "backend/transport/endpoint.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::uint32_t kAddressVersion = 6;

// What a rank says of one transport: how peers reach it by that, or why they cannot.
struct TransportAddress {
  std::string bytes;   // Endpoint::address()
  std::string whyNot;  // empty: it may be used
  friend bool operator==(const TransportAddress&, const TransportAddress&) = default;
};

struct RankAddress {
  std::uint32_t worldSize = 0;         // as this rank was told
  std::string bootId;                  // of the running kernel: equal on all processes of one host, containers included
  std::uint64_t networkNamespace = 0;  // inode; abstract Unix sockets reach no further
  std::string kernel;                  // "<boot id> <network namespace>" as they are, whatever SHARDWIRE_HOST_ID says; empty: not known
  std::uint64_t userNamespace = 0;     // inode; numbers of users mean the same within one; 0: not known
  std::string host;                    // for messages
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
  RandomId process;                                             // processId(): whether a rank finds what it wrote itself
  bool hasJobToken = false;                                     // SHARDWIRE_JOB_TOKEN is set there
  bool joinsLate = false;                                       // it joins peers of its host when they are needed (Options::links)
  std::string socketName;                                       // Unix socket of its process (ProcessAddress); empty: it could make none
  RandomId doorToken;                                           // the token of that process address
  std::string lifeName;                                         // random; the Unix socket that shows whether the rank lives (LifeSign)
  std::vector<NetAddress> lifeLinks;                            // the same for other hosts; empty when no wire may be used
  RandomId token;                                               // a secret; rank 0's is the group's
  std::vector<NetAddress> links;                                // where this rank listens for links; empty when no wire may be used
  std::array<TransportAddress, kNumTransportKinds> transports;  // by TransportKind
  // Not ok: this rank could not even start, for this reason.
  Status failure;

  bool hasUnixSocket() const { return !socketName.empty(); }
  friend bool operator==(const RankAddress&, const RankAddress&) = default;
};

// Of the running kernel: another one after each boot, equal on all processes of the host, containers included.
Result<std::string> readBootId();

Place placeOf(const RankAddress& address);

std::string encodeAddress(const RankAddress& address);
// kMismatch for bytes that are no address, kUnsupported for another version's.
Result<RankAddress> decodeAddress(std::string_view bytes);

// This process's, with a new name of its sign of life and a new token. The world size, the job token's flag, the door, links and transports
// are left to the caller.
Result<RankAddress> makeAddress();

std::string addressKey(Rank rank);  // "shardwire/3"

}  // namespace shardwire::internal
