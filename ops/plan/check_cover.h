// Whether the inputs of all ranks cover the outputs, and how often. The same answer on every rank, whichever asks.
#pragma once

#include "ops/plan/source_index.h"

namespace shardwire::internal {

// Ok, or the error of the first elements that several inputs supply, if the spec says that is a mistake, or that no
// input covers, unless the spec allows gaps.
Status checkCover(const GlobalSpec& spec, const SourceIndex& index);

}  // namespace shardwire::internal
