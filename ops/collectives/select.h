// Chooses the algorithm of a collective by bytes, ranks and hosts: one table, the first row that fits. Pure; the same
// on every rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/collectives/collective.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// One choice that the user forces: (collective, algorithm).
struct ForcedAlgorithm {
  Collective kind = Collective::kBarrier;
  Algorithm algorithm = Algorithm::kDirect;
  friend bool operator==(const ForcedAlgorithm&, const ForcedAlgorithm&) = default;
};
// "broadcast=tree,reduce=chunks". kInvalidArgument naming what is not known and what there is.
Result<std::vector<ForcedAlgorithm>> parseAlgorithms(std::string_view text);

struct Selection {
  Topology topology;
  std::size_t frameBytes = 0;  // edges up to this travel in one frame: one message, no hand-shake
  std::vector<ForcedAlgorithm> forced;
};

// The algorithms of this collective, the default first.
std::span<const Algorithm> algorithmsOf(Collective kind);
Algorithm select(const CollectiveCall& call, const Selection& selection);
// For people: every row, whether the row can apply here, and the reason for the row.
std::string describeSelection(const Selection& selection);

}  // namespace shardwire::internal
