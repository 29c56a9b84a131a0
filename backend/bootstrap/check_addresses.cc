#include "backend/bootstrap/check_addresses.h"

#include <fmt/format.h>

#include <map>

#include "backend/bootstrap/select_transport.h"

namespace shardwire::internal {
namespace {

std::size_t index(Rank rank) {
  return static_cast<std::size_t>(rank);
}

}  // namespace

std::string nameOf(Rank rank, const RankAddress& address) {
  return fmt::format("rank {} (pid {} on host {})", rank, address.pid, address.host);
}

std::string pairText(Rank a, const RankAddress& first, Rank b, const RankAddress& second) {
  return a < b ? fmt::format("{} and {}", nameOf(a, first), nameOf(b, second)) : pairText(b, second, a, first);
}

Status checkWorldSize(Rank a, const RankAddress& first, Rank b, const RankAddress& second) {
  if (first.worldSize == second.worldSize) {
    return Status::ok();
  }
  if (a > b) {
    return checkWorldSize(b, second, a, first);
  }
  return {StatusCode::kMismatch,
          fmt::format("the ranks do not agree on how many they are: {} was started with world size {}, {} with {}",
                      nameOf(a, first), first.worldSize, nameOf(b, second), second.worldSize)};
}

Status checkOwnAddress(Rank rank, const RankAddress& own, const std::string& published, const std::string& stored) {
  if (stored == published) {
    return Status::ok();
  }
  const auto other = decodeAddress(stored);
  return {
      StatusCode::kMismatch,
      fmt::format("two processes call themselves rank {}: pid {} on host {}, and {}, which then wrote another address",
                  rank, own.pid, own.host,
                  other.isOk() ? fmt::format("pid {} on host {}", other->pid, other->host) : "one")};
}

Status checkJobTokens(const std::vector<RankAddress>& addresses) {
  for (std::size_t i = 1; i < addresses.size(); ++i) {
    if (addresses[i].hasJobToken != addresses[0].hasJobToken) {
      const std::size_t with = addresses[0].hasJobToken ? 0 : i;
      const std::size_t without = addresses[0].hasJobToken ? i : 0;
      return {StatusCode::kMismatch,
              fmt::format("SHARDWIRE_JOB_TOKEN is set for {} and not for {}: set one secret for all ranks, or for none",
                          nameOf(static_cast<Rank>(with), addresses[with]),
                          nameOf(static_cast<Rank>(without), addresses[without]))};
    }
  }
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (!addresses[i].hasJobToken && !addresses[i].hasUnixSocket()) {
      for (std::size_t j = 0; j < addresses.size(); ++j) {
        if (j != i && isOneUserOnOneHost(addresses[i], addresses[j])) {
          return {StatusCode::kUnsupported,
                  fmt::format("{} could make no Unix socket, at which {} would ask for the secret, as ranks of one "
                              "user on one host do. The rank's log says why (SHARDWIRE_LOG=info). If raising a limit "
                              "does not help, set SHARDWIRE_JOB_TOKEN to one secret for all ranks",
                              nameOf(static_cast<Rank>(i), addresses[i]), nameOf(static_cast<Rank>(j), addresses[j]))};
        }
      }
    }
  }
  return Status::ok();
}

// Ranks of one place with the same transports fit other ranks, and each other, alike: so two ranks of each kind
// represent all ranks of that kind.
Status checkPairs(const std::vector<RankAddress>& addresses) {
  const auto offers = [&](Rank rank, std::size_t kind) {
    return addresses[index(rank)].transports[kind].whyNot.empty();
  };
  std::map<std::string, int> numOfKind;
  std::vector<Rank> some;
  for (Rank rank = 0; rank < static_cast<Rank>(addresses.size()); ++rank) {
    const Place place = placeOf(addresses[index(rank)]);
    std::string kindOfRank = fmt::format("{}|{}|{}|{}|", place.bootId, place.networkNamespace, place.uid, place.kernel);
    for (std::size_t kind = 0; kind < kNumTransportKinds; ++kind) {
      kindOfRank += offers(rank, kind) ? '+' : '-';
    }
    if (++numOfKind[kindOfRank] <= 2) {
      some.push_back(rank);
    }
  }
  for (std::size_t i = 0; i < some.size(); ++i) {
    for (std::size_t j = i + 1; j < some.size(); ++j) {
      const Rank a = some[i];
      const Rank b = some[j];
      bool joined =
          offers(a, 0) && offers(b, 0) &&
          whyOutOfReach(TransportKind::kShm, placeOf(addresses[index(a)]), placeOf(addresses[index(b)])).empty();
      for (std::size_t kind = 1; kind < kNumTransportKinds && !joined; ++kind) {
        joined = offers(a, kind) && offers(b, kind);
      }
      if (!joined) {
        const auto choice = chooseTransports(a, addresses[index(a)], b, addresses[index(b)],
                                             [](TransportKind) { return std::string(); });
        return {StatusCode::kUnsupported,
                fmt::format("no transport joins {}: {}", pairText(a, addresses[index(a)], b, addresses[index(b)]),
                            reasons(choice))};
      }
    }
  }
  return Status::ok();
}

bool isOneUserOnOneHost(const RankAddress& a, const RankAddress& b) {
  return !a.kernel.empty() && a.kernel == b.kernel && a.userNamespace != 0 && a.userNamespace == b.userNamespace &&
         a.uid == b.uid;
}

std::string foreignProcessWarning(Rank self, const std::vector<RankAddress>& addresses) {
  const RankAddress& mine = addresses[index(self)];
  std::string warning;
  for (std::size_t i = 0; i < addresses.size() && !mine.hasJobToken; ++i) {
    const auto rank = static_cast<Rank>(i);
    if (rank == self) {
      continue;
    }
    if (isOneUserOnOneHost(mine, addresses[i])) {
      if (rank < self) {
        return {};
      }
    } else if (warning.empty()) {
      warning = fmt::format(
          "{} are not processes of one user on one host, and SHARDWIRE_JOB_TOKEN is not set: every process with "
          "access to the job's store can join as a rank. Set one secret for all ranks",
          pairText(self, mine, rank, addresses[i]));
    }
  }
  return warning;
}

}  // namespace shardwire::internal
