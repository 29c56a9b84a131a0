// Output elements that no input covers. The same answer on every rank, whichever asks.
#pragma once

#include "ops/plan/source_index.h"

namespace shardwire::internal {

// Ok, or kGap listing the first uncovered regions of all ranks' outputs.
Status checkGaps(const GlobalSpec& spec, const SourceIndex& index);

}  // namespace shardwire::internal
