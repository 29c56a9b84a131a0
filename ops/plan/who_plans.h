// Decides which way ends sooner: every rank plans for itself, or rank 0 plans for all ranks and ships the plans. Pure.
#pragma once

#include <cstddef>

namespace shardwire::internal {

// specBytes: sum over all ranks' encoded specs. ranksPerCore: on the host with the most ranks, which share the cores.
//
// One rank's plan takes a time a, which grows with the boxes of all ranks. Together the ranks of a host need a *
// ranksPerCore. Rank 0 needs a * sqrt(worldSize) for all ranks, by the table in docs/compile.md (2.5 a for 8 ranks, 7 a
// for 64, 24 to 50 a for 1,024). Shipping also costs steps of its own, more than small operations can save.
bool isShippingSooner(int worldSize, std::size_t specBytes, double ranksPerCore);

}  // namespace shardwire::internal
