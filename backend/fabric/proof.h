// How two ranks prove to each other that they belong to one group: HMAC-SHA256 over both sides' random challenges, the role, the ranks and
// the protocol's version, under a key made of the store's token and the job's. Nothing secret goes over the wire, and no proof fits another
// link, the other direction or another pair of ranks. Pure functions, but for the random numbers; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "backend/base/digest.h"
#include "backend/base/random_id.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::uint8_t kLinkVersion = 2;

// What both ends must agree on before anything else is said.
struct LinkHello {
  Rank from = 0;
  Rank to = 0;
  std::uint32_t worldSize = 0;
  std::uint8_t kind = 0;  // TransportKind that the dialer wants
  RandomId door{};        // of `to`, at the listener of its process: makeDoorId()
  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

using LinkKey = Digest;
using Challenge = std::array<std::uint8_t, 32>;

enum class LinkRole : std::uint8_t { kDialer = 1, kListener = 2 };

// HMAC-SHA256. The key has at most 64 bytes: here they are tokens and digests.
Digest hmac(std::string_view key, std::string_view message);

LinkKey makeLinkKey(const RandomId& token, std::string_view jobToken);
// What ranks of one host show each other over a Unix socket: the store's token, with the job's mixed in. Says neither of the two.
RandomId makeHostToken(const RandomId& token, std::string_view jobToken);
// Names the door of the rank that published this token among all doors of its process. Says nothing of the token.
RandomId makeDoorId(const RandomId& token);
Result<Challenge> makeChallenge();

// What `role` sends to prove itself.
Digest proveLink(const LinkKey& key, LinkRole role, const LinkHello& hello, const Challenge& dialer, const Challenge& listener);
// A secret of this one link, for what its two ends agree on later (further sockets). Never sent.
Digest linkSecret(const LinkKey& key, const LinkHello& hello, const Challenge& dialer, const Challenge& listener);
// Proof for a further socket between the two ends of one link: `purpose` says which. Good for one use, which the verifier sees to.
Digest proveSocket(const Digest& secret, std::string_view purpose);

// In constant time.
bool sameDigest(std::string_view theirs, const Digest& ours);

}  // namespace shardwire::internal
