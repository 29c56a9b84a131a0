// The proof by which two ranks convince each other that both belong to one group: HMAC-SHA256 over both sides' random
// challenges, the role, the ranks and the protocol's version, under a key made of the store's token and the job's.
// Nothing secret goes over the wire, and no proof fits another link, the other direction or another pair of ranks. Pure
// functions, except for the random numbers; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "backend/base/digest.h"
#include "backend/base/random_id.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::uint8_t kLinkVersion = 3;

// Both ends must agree on this before any other message.
struct LinkHello {
  Rank from = 0;
  Rank to = 0;
  std::uint32_t worldSize = 0;
  std::uint8_t kind = 0;  // TransportKind requested by the dialer
  RandomId endpoint{};    // the endpoint of `to`, at the listener of its process: makeEndpointId()
  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

using LinkKey = Digest;
using Challenge = std::array<std::uint8_t, 32>;

enum class LinkRole : std::uint8_t { kDialer = 1, kListener = 2 };

// HMAC-SHA256. The key has at most 64 bytes: here keys are tokens and digests.
Digest hmac(std::string_view key, std::string_view message);

LinkKey makeLinkKey(const RandomId& token, std::string_view jobToken);
// The token that ranks of one host present to each other over a Unix socket: the store's token, mixed with the job's.
// Reveals neither of the two.
RandomId makeHostToken(const RandomId& token, std::string_view jobToken);
// Names the endpoint of the rank that published this token among all endpoints of the process. Reveals nothing of the
// token.
RandomId makeEndpointId(const RandomId& token);
Result<Challenge> makeChallenge();

// The proof sent by `role`.
Digest proveLink(const LinkKey& key, LinkRole role, const LinkHello& hello, const Challenge& dialer,
                 const Challenge& listener);
// A secret of this one link, for later agreements of the two ends (further sockets). Never sent.
Digest linkSecret(const LinkKey& key, const LinkHello& hello, const Challenge& dialer, const Challenge& listener);
// The proof for a further socket between the two ends of one link, named by `purpose`. Good for one use, which the
// verifier enforces.
Digest proveSocket(const Digest& secret, std::string_view purpose);

// Compares in constant time.
bool sameDigest(std::string_view theirs, const Digest& ours);

}  // namespace shardwire::internal
