// Which tensors of one collective may share memory. Pure; any thread.
#pragma once

#include <span>

#include "shardwire/export.h"
#include "shardwire/status.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// The names of the two sides in error messages; a list's name is followed by the index.
struct ListNames {
  const char* call;
  const char* inputs;
  const char* outputs;
};

// kInvalidArgument naming both tensors when two outputs share memory, or an output and an input that a peer (or another
// part of the collective) still reads. One output may be identical with the input that this rank gives itself: with the
// tensor at `rank` of each list, or with the only tensor of a list. Precondition: the views are checked (FlatTensors).
SHARDWIRE_EXPORT Status checkListMemory(const ListNames& names, Rank rank, std::span<const TensorView> inputs,
                                        std::span<const TensorView> outputs);

}  // namespace shardwire::internal
