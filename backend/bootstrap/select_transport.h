// The transports that may join two ranks, and the reasons against all other transports. Decided from the two published
// addresses, so both ranks make the same list.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/bootstrap/address.h"

namespace shardwire::internal {

// By TransportKind: whether Options::transports allows the transport.
using AllowedTransports = std::array<bool, kNumTransportKinds>;
// "", "shm,tcp" (only these), "^tcp,mpi" (all but these). kInvalidArgument for unknown names, an empty selection, or a
// '^' that is not first.
Result<AllowedTransports> parseTransports(std::string_view text);

struct TransportChoice {
  std::vector<TransportKind> candidates;               // best first
  std::array<std::string, kNumTransportKinds> whyNot;  // by TransportKind; empty for candidates
};

// Endpoint::whyNot of a transport available to both ranks and reaching from one rank to the other.
using WhyNot = std::function<std::string(TransportKind)>;

TransportChoice chooseTransports(Rank rank, const RankAddress& mine, Rank peer, const RankAddress& theirs,
                                 const WhyNot& whyNot);

// "shm: they run on different hosts (a and b); rdma: ...": the reasons against all kinds before `end` in the order of
// preference.
std::string reasons(const TransportChoice& choice, int end = kNumTransportKinds);

// Ranks with equal numbers share a host, as far as shared memory reaches: one kernel and one network namespace.
std::vector<std::int32_t> numberHosts(const std::vector<RankAddress>& addresses);

}  // namespace shardwire::internal
