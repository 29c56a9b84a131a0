// How two ranks prove to each other that they belong to one group: HMAC-SHA256 over both sides' random challenges, the role, the ranks and
// the protocol's version, under a key made of the store's token and the job's. Nothing secret goes over the wire, and no proof fits another
// link, the other direction or another pair of ranks. Pure functions, but for the random numbers; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "backend/base/random_id.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::uint8_t kLinkVersion = 1;

// What both ends must agree on before anything else is said.
struct LinkHello {
  Rank from = 0;
  Rank to = 0;
  std::uint32_t worldSize = 0;
  std::uint8_t kind = 0;  // TransportKind that the dialer wants
  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

using Digest = std::array<std::uint8_t, 32>;
using LinkKey = Digest;
using Challenge = std::array<std::uint8_t, 32>;

enum class LinkRole : std::uint8_t { kDialer = 1, kListener = 2 };

LinkKey makeLinkKey(const RandomId& token, std::string_view jobToken);
Result<Challenge> makeChallenge();

// What `role` sends to prove itself.
Digest proveLink(const LinkKey& key, LinkRole role, const LinkHello& hello, const Challenge& dialer, const Challenge& listener);
// A secret of this one link, for what its two ends agree on later (further sockets). Never sent.
Digest linkSecret(const LinkKey& key, const LinkHello& hello, const Challenge& dialer, const Challenge& listener);
// Proof for a further socket between the two ends of one link: `purpose` says which. Good for one use, which the verifier sees to.
Digest proveSocket(const Digest& secret, std::string_view purpose);

// In constant time.
bool sameDigest(std::string_view theirs, const Digest& ours);

inline std::string_view asText(const std::array<std::uint8_t, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace shardwire::internal
