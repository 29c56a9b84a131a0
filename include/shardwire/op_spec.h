// What one rank tells compileOp: the boxes of global tensors that it has and wants. Plain values; no torch; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire {

// A box in the index space of a tensor: offset[d] <= index[d] < offset[d] + shape[d]. Both have the same number of dimensions.
struct Slice {
  Dims offset;
  Dims shape;
  friend bool operator==(const Slice&, const Slice&) = default;
};

// A global tensor, declared by every rank that names it. Ranks must agree on all fields that both give.
struct TensorDecl {
  std::string name;           // "" when the op has one tensor only
  std::optional<Dims> shape;  // absent: the bounding box of all ranks' regions
  DType dtype = DType::kFloat32;
  ReduceOp reduction = ReduceOp::kNone;
  friend bool operator==(const TensorDecl&, const TensorDecl&) = default;
};

// Where one box of the global tensor lies in a rank's local tensor: local index = global index - slice.offset + localOffset.
struct PlacedSlice {
  Slice slice;
  Dims localOffset;
  friend bool operator==(const PlacedSlice&, const PlacedSlice&) = default;
};

// One local tensor (an element of `inputs` or `outputs`): its local shape and the boxes of the global tensor that it holds.
// A dict spec is one box at local offset 0; a _StridedShard'ed DTensor may be many.
struct LocalTensor {
  std::int32_t tensor = 0;  // index into LocalSpec::tensors
  Dims localShape;
  std::vector<PlacedSlice> slices;
  // Inputs only. Inputs (of any rank) of one tensor with the same non-zero value hold equal elements wherever they overlap: any holder may
  // supply them, and a reduction counts them once. 0: a contribution of its own.
  std::uint64_t replicaClass = 0;
  friend bool operator==(const LocalTensor&, const LocalTensor&) = default;
};

struct LocalSpec {
  std::vector<TensorDecl> tensors;
  std::vector<LocalTensor> inputs;
  std::vector<LocalTensor> outputs;
  bool allowGaps = false;  // all ranks must agree
  std::string name;        // for messages; rank 0's is used
  // Not ok: this rank could not even form its spec. It still takes part in the exchange, so that every rank raises this same error.
  Status localError;
};

}  // namespace shardwire
