// A plan as text, for the messages of tests.
#pragma once

#include <string>

#include "ops/plan/plan.h"

namespace shardwire::internal {

std::string dump(const Plan& plan);

}  // namespace shardwire::internal
