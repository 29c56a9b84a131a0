// Compares the reports of all ranks that joined groups with the promises of the product.
#pragma once

#include <string>
#include <vector>

#include "tests/simulate/join_program.h"

namespace shardwire::simulate {

struct JoinDeath {
  Time at = kNever;          // since the begin of the world's clock
  bool isPublished = false;  // the process's address was in the store
};

// The promises:
//   every rank of a group without a loss joins, soon after the last rank has come;
//   every other rank joins, or raises an error that names a lost rank or the store, within the timeout;
//   the death of a rank with a published address ends the making of the group within seconds.
// `deaths`: by process.
std::vector<std::string> findJoinFaults(const JoinWorld& shared, const std::vector<JoinReport>& reports,
                                        const std::vector<JoinDeath>& deaths);

}  // namespace shardwire::simulate
