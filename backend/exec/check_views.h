// Are these tensors the ones a plan was made for, and may it run over them? Checked before anything moves. Pure; any thread.
#pragma once

#include <span>
#include <string>

#include "ops/plan/plan.h"
#include "shardwire/status.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// kInvalidArgument / kTypeError naming list, index, what was given and what was expected: count, dtype, shape, strides (none negative;
// outputs may not overlap themselves), outputs that share memory with each other.
Status checkViews(const Plan& plan, std::span<const TensorView> inputs, std::span<const TensorView> outputs, const std::string& opName);

// Inputs and outputs that share memory: kInvalidArgument when some element would be overwritten while it is
// still to be read. Allowed: a region that only this rank reads, and only into the very same place.
Status checkAliasing(const Plan& plan, std::span<const TensorView> inputs, std::span<const TensorView> outputs, const std::string& opName);

}  // namespace shardwire::internal
