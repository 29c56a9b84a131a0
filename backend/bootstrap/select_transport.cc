#include "backend/bootstrap/select_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace shardwire::internal {
namespace {

constexpr std::array<TransportKind, kNumTransportKinds> kByPreference = {TransportKind::kShm, TransportKind::kRdma,
                                                                         TransportKind::kMpi, TransportKind::kTcp};

std::size_t index(TransportKind kind) {
  return static_cast<std::size_t>(kind);
}

std::optional<TransportKind> findKind(std::string_view name) {
  for (const TransportKind kind : kByPreference) {
    if (name == transportKindName(kind)) {
      return kind;
    }
  }
  return std::nullopt;
}

}  // namespace

Result<AllowedTransports> parseTransports(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return Status{
        StatusCode::kInvalidArgument,
        fmt::format(
            "SHARDWIRE_TRANSPORTS={}: {} (names: shm, rdma, mpi, tcp; \"shm,tcp\" allows these, \"^tcp\" all but tcp)",
            text, why)};
  };
  AllowedTransports allowed;
  std::string_view rest = text;
  const bool isExclusion = rest.starts_with('^');
  if (isExclusion) {
    rest.remove_prefix(1);
  }
  if (rest.empty()) {
    if (isExclusion) {
      return refuse("it excludes nothing");
    }
    allowed.fill(true);
    return allowed;
  }
  allowed.fill(isExclusion);
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view name = rest.substr(0, comma);
    const auto kind = findKind(name);
    if (!kind) {
      return refuse(fmt::format("there is no transport \"{}\"", name));
    }
    allowed[index(*kind)] = !isExclusion;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (std::none_of(allowed.begin(), allowed.end(), [](bool is) { return is; })) {
    return refuse("it leaves none");
  }
  return allowed;
}

TransportChoice chooseTransports(Rank rank, const RankAddress& mine, Rank peer, const RankAddress& theirs,
                                 const WhyNot& whyNot) {
  TransportChoice choice;
  for (const TransportKind kind : kByPreference) {
    std::string& why = choice.whyNot[index(kind)];
    // The lower rank's reason comes first, so both ranks report the same text.
    const auto& lower = rank < peer ? mine : theirs;
    const auto& higher = rank < peer ? theirs : mine;
    if (const std::string& own = lower.transports[index(kind)].whyNot; !own.empty()) {
      why = fmt::format("rank {}: {}", std::min(rank, peer), own);
    } else if (const std::string& other = higher.transports[index(kind)].whyNot; !other.empty()) {
      why = fmt::format("rank {}: {}", std::max(rank, peer), other);
    } else {
      why = whyOutOfReach(kind, placeOf(lower), placeOf(higher));
      why = why.empty() ? whyNot(kind) : why;
    }
    if (why.empty()) {
      choice.candidates.push_back(kind);
    }
  }
  return choice;
}

std::string reasons(const TransportChoice& choice, int end) {
  std::string text;
  for (const TransportKind kind : kByPreference) {
    const std::string& why = choice.whyNot[index(kind)];
    if (static_cast<int>(kind) < end && !why.empty()) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", transportKindName(kind), why);
    }
  }
  return text;
}

std::vector<std::int32_t> numberHosts(const std::vector<RankAddress>& addresses) {
  std::map<std::pair<std::string, std::uint64_t>, std::int32_t> numbers;
  std::vector<std::int32_t> hosts;
  hosts.reserve(addresses.size());
  for (const RankAddress& address : addresses) {
    const auto next = static_cast<std::int32_t>(numbers.size());
    hosts.push_back(numbers.try_emplace({address.bootId, address.networkNamespace}, next).first->second);
  }
  return hosts;
}

}  // namespace shardwire::internal
