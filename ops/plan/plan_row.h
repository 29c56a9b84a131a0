// Everything one rank must know of a planned operation: the rank's plan, the agreement of all ranks, and the rank's own
// lists. A rank that plans for others ships rows as bytes, and a program that plans without a group stores rows. Plain
// values; pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ops/plan/global_spec.h"
#include "ops/plan/redistribute.h"

namespace shardwire::internal {

struct PlanRow {
  LocalSpec agreed;  // as returned by specOf
  std::uint64_t hosts =
      0;  // hashOf the hosts of the planning; plans of one operation for different hosts do not fit together
  Plan plan;
};

std::uint64_t hashOf(HostMap hosts, std::size_t worldSize);

// Versioned, with a checksum.
std::string encodeRow(const PlanRow& row);
// Accepts only the output of encodeRow. kInvalidArgument for other versions, changed or missing bytes, plans that break
// the rules (validate), and lists of another plan.
Result<PlanRow> decodeRow(std::string_view bytes);

// Whether `row` is the row of `rank` of `worldSize` for the spec `asked`. kInvalidArgument naming the difference.
Status checkRow(const PlanRow& row, Rank rank, int worldSize, const LocalSpec& asked);

}  // namespace shardwire::internal
