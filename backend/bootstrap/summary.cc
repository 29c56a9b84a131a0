#include "backend/bootstrap/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>
#include <vector>

namespace shardwire::internal {

std::string rankList(std::span<const Rank> ranks) {
  return fmt::format("{} {}", ranks.size() > 1 ? "ranks" : "rank", fmt::join(ranks, ", "));
}

std::string rankRanges(std::span<const Rank> ranks) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    const bool isRange = last > i + 1;
    parts.push_back(isRange ? fmt::format("{} to {}", ranks[i], ranks[last]) : fmt::format("{}", ranks[i]));
    i = isRange ? last : i;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(parts, ", "));
}

std::string summary(const Peers& peers) {
  std::map<std::pair<std::string, std::string>, std::vector<Rank>> byTransport;
  for (std::size_t peer = 0; peer < peers.connections.size(); ++peer) {
    if (const auto& connection = peers.connections[peer]; connection != nullptr) {
      const bool isLate = peers.late != nullptr && peers.late->isLate(static_cast<Rank>(peer));
      byTransport[{fmt::format("{}{}", connection->transportName(), isLate ? ", when first needed," : ""),
                   peers.whyNotFaster[peer]}]
          .push_back(static_cast<Rank>(peer));
    }
  }
  std::string text;
  for (const auto& [transport, ranks] : byTransport) {
    text += fmt::format("{}{} to {}{}", text.empty() ? "" : "; ", transport.first, rankList(ranks),
                        transport.second.empty() ? "" : fmt::format(" ({})", transport.second));
  }
  return text.empty() ? "alone" : text;
}

}  // namespace shardwire::internal
