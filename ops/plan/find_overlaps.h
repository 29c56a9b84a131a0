// Elements that several inputs supply, where that is said to be a mistake. The same answer on every rank, whichever
// asks.
#pragma once

#include "ops/plan/source_index.h"

namespace shardwire::internal {

// Ok, or kInvalidArgument listing the first pairs of overlapping inputs, with both regions and ranks. Tensors with a
// reduction are left out, and so are inputs of one replica class: these are equal.
Status checkOverlaps(const GlobalSpec& spec, const SourceIndex& index);

}  // namespace shardwire::internal
