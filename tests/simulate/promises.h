// Compares the reports of all ranks with the promises of the product.
#pragma once

#include <string>
#include <vector>

#include "tests/simulate/rank.h"
#include "tests/simulate/schedule.h"

namespace shardwire::simulate {

// Whether the text of an error names the rank: "rank 3", or "ranks 1, 3 to 5".
bool names(const std::string& text, Rank rank);
// compile_op ends alone at the timeout, and the group stays usable: the rank then leaves without a notice.
bool endsAlone(const Status& failure);

// The promises:
//   every living rank ends within the timeouts;
//   all operations of a group succeed unless a rank or a link of the group is lost, and then every error names this
//   rank or link;
//   bytes are right wherever an operation succeeded.
// A process with several groups may come late to a group, or leave it, because of a loss in another group: then the
// errors name the loss in the other group, or this process.
std::vector<std::string> findFaults(const Schedule& schedule, const std::vector<Report>& reports);

}  // namespace shardwire::simulate
