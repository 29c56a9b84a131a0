// Checks whether the given tensors fit the plan, and whether the plan may run over them. To be called before anything
// moves. Pure; any thread.
#pragma once

#include <span>
#include <string>

#include "ops/plan/plan.h"
#include "shardwire/status.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// kInvalidArgument / kTypeError, whose text names the list, the index, the given value and the expected value: count,
// dtype, shape, strides (one per dimension, none negative; outputs may not overlap themselves), outputs with shared
// memory.
Status checkViews(const Plan& plan, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                  const std::string& opName);

// Inputs and outputs with shared memory: kInvalidArgument when some element would be overwritten before the read.
// Allowed: a region read by this rank alone, and only into the very same place.
Status checkAliasing(const Plan& plan, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const std::string& opName);

}  // namespace shardwire::internal
