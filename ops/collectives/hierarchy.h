// Between hosts a byte should cross once: each rank's part goes to one rank of every other host, and from there to the
// other ranks of the host.
//
//   flat           each host sends its parts to every rank elsewhere: L (n - L) parts leave a host of L ranks
//   hierarchical   (H - 1) L parts leave a host, L times fewer, for one stage more
//
// Only for bytes that are moved unchanged. Sums are not split by hosts: a sum combines all ranks' addends in rank order
// with one rounding, and partial sums would give other bits.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "ops/collectives/collective.h"

namespace shardwire::internal {

// The ranks of each host, ascending.
class HostGroups {
 public:
  explicit HostGroups(std::span<const std::int32_t> hosts);

  std::size_t hostOf(Rank rank) const { return hostOf_[static_cast<std::size_t>(rank)]; }
  // The rank that receives `owner`'s part for all of `host`, another host than the owner's. Ranks with the same place
  // on their hosts exchange their parts.
  Rank agentOf(std::size_t host, Rank owner) const {
    return ranks_[host][indexOf_[static_cast<std::size_t>(owner)] % ranks_[host].size()];
  }
  // Whether `rank` has `owner`'s part after the parts crossed between the hosts.
  bool holds(Rank rank, Rank owner) const {
    return rank == owner || (hostOf(rank) != hostOf(owner) && agentOf(hostOf(rank), owner) == rank);
  }

 private:
  std::vector<std::vector<Rank>> ranks_;  // by host
  std::vector<std::size_t> hostOf_;       // by rank
  std::vector<std::size_t> indexOf_;      // by rank: place among the ranks of its host
};

// Every rank has its part of a global tensor; in the end all ranks but one have all parts.
struct Spread {
  const CollectiveCall& call;
  std::int64_t globalElems = 0;
  std::function<std::pair<std::int64_t, std::int64_t>(Rank)> partOf;  // [first, last) of the global tensor
  std::function<StageTensor(Rank)> placeOf;                           // where this rank has, or gets, a rank's part
  Rank hasAll = -1;                                                   // has all parts from the start, and gets none
  std::optional<StageTensor> ownCopy;  // where each rank wants a copy of the rank's own part; all ranks or none
};

// Adds two stages: across hosts, then within them.
void addSpread(Program& program, const Spread& spread, Rank rank, const Topology& topology);

}  // namespace shardwire::internal
