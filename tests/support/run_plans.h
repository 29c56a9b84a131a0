// Runs the plans of all ranks one after the other in this thread, element by element, reading every source in place.
// For tests of planners.
#pragma once

#include <vector>

#include "ops/plan/plan.h"
#include "tests/support/naive_model.h"

namespace shardwire::testing {

// plans[r] is rank r's. Writes `outputs`; every move reads the inputs from before the run.
void runPlans(const std::vector<internal::Plan>& plans, const RankBytes& inputs, RankBytes& outputs);

// "" when, for every pair of ranks, the sent items are the consumed items, in the same order; else the first
// difference.
std::string findEdgeMismatch(const std::vector<internal::Plan>& plans);

}  // namespace shardwire::testing
