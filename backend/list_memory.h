// Which tensors of one collective may share memory. Pure; any thread.
#pragma once

#include <span>

#include "shardwire/status.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// What messages call the two sides; a list's name is followed by the index.
struct ListNames {
  const char* call;
  const char* inputs;
  const char* outputs;
};

// kInvalidArgument naming both tensors when two outputs share memory, or an output and an input that a peer (or another part of the
// collective) still reads. Legal is an output that is the very tensor that this rank gives itself: of each list that at `rank`, or its only
// one.
Status checkListMemory(const ListNames& names, Rank rank, std::span<const TensorView> inputs, std::span<const TensorView> outputs);

}  // namespace shardwire::internal
