// The address that a rank publishes in the store for the other ranks. Plain values.
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

// A rank's statement about one transport: how peers reach the rank, or why they cannot.
struct TransportAddress {
  std::string bytes;   // Endpoint::address()
  std::string whyNot;  // empty: the transport may be used
  friend bool operator==(const TransportAddress&, const TransportAddress&) = default;
};

struct RankAddress {
  std::uint32_t worldSize = 0;         // as given to this rank
  std::string bootId;                  // of the running kernel: equal on all processes of one host, containers included
  std::uint64_t networkNamespace = 0;  // inode; abstract Unix sockets do not reach beyond the namespace
  // "<boot id> <network namespace>", whatever SHARDWIRE_HOST_ID says; empty: not known.
  std::string kernel;
  std::uint64_t userNamespace = 0;  // inode; user numbers mean the same within one namespace; 0: not known
  std::string host;                 // for messages
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
  // processId(). By this id a rank recognises its own entries.
  RandomId process;
  bool hasJobToken = false;  // SHARDWIRE_JOB_TOKEN is set for the rank
  // The rank joins peers when an operation first needs them (Options::links).
  bool joinsLate = false;
  // Unix socket of the rank's process (ProcessAddress); empty: the process has none.
  std::string socketName;
  RandomId processToken;  // the token of that process address
  // Random; the Unix socket that shows whether the rank lives (LifeSign).
  std::string lifeName;
  // Listeners with the same purpose for other hosts; empty when no wire may be used.
  std::vector<NetAddress> lifeLinks;
  RandomId token;  // a secret; rank 0's is the group's
  // Where this rank listens for links; empty when no wire may be used.
  std::vector<NetAddress> links;
  std::array<TransportAddress, kNumTransportKinds> transports;  // by TransportKind
  // Not ok: this rank could not start, for this reason.
  Status failure;

  bool hasUnixSocket() const { return !socketName.empty(); }
  friend bool operator==(const RankAddress&, const RankAddress&) = default;
};

// The id of the running kernel: a new one after each boot, equal on all processes of the host, containers included.
Result<std::string> readBootId();

Place placeOf(const RankAddress& address);

std::string encodeAddress(const RankAddress& address);
// kMismatch for bytes that are no address, kUnsupported for an address of another version.
Result<RankAddress> decodeAddress(std::string_view bytes);

// The address of this process, with a new name for the sign of life and a new token. The caller fills in the world
// size, the job token's flag, the process's socket, links and transports.
Result<RankAddress> makeAddress();

std::string addressKey(Rank rank);  // "shardwire/3"

}  // namespace shardwire::internal
