// What one rank must know of a planned operation: its plan, what all ranks agreed on, and its own lists. As bytes it is shipped by a rank
// that plans for others, and kept by who plans without a group. Plain values; pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ops/plan/global_spec.h"
#include "ops/plan/redistribute.h"

namespace shardwire::internal {

struct PlanRow {
  LocalSpec agreed;         // as specOf gives it
  std::uint64_t hosts = 0;  // hashOf the hosts that it was planned for: plans of one operation for other hosts do not fit together
  Plan plan;
};

std::uint64_t hashOf(HostMap hosts, std::size_t worldSize);

// Versioned, with a checksum.
std::string encodeRow(const PlanRow& row);
// Nothing that encodeRow did not write passes: kInvalidArgument for other versions, changed or missing bytes, plans that break their own
// rules (validate), and lists that are not those of the plan.
Result<PlanRow> decodeRow(std::string_view bytes);

// Whether it is the row of `rank` of `worldSize` for what that rank asked for. kInvalidArgument naming what differs.
Status checkRow(const PlanRow& row, Rank rank, int worldSize, const LocalSpec& asked);

}  // namespace shardwire::internal
