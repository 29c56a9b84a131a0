// Which is over sooner: every rank plans its own, or rank 0 plans for all and ships. Pure.
#pragma once

#include <cstddef>

namespace shardwire::internal {

// specBytes: of all ranks' encoded specs. ranksPerCore: of the host with the most ranks; those take turns.
//
// One rank's plan takes a time a that grows with all ranks' boxes. Together the ranks of a host need a * ranksPerCore. Rank 0 needs
// a * sqrt(worldSize) for all, by the table in docs/compile.md (2.5 a of 8 ranks, 7 of 64, 24 to 50 of 1,024), and shipping costs steps of
// its own, which small operations do not win back.
bool isShippingSooner(int worldSize, std::size_t specBytes, double ranksPerCore);

}  // namespace shardwire::internal
