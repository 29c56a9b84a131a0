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
  // Of the inputs. Absent: as other ranks say; where none does, as the outputs'. Each rank gives this or outputDtype, or both.
  std::optional<DType> dtype = DType::kFloat32;
  ReduceOp reduction = ReduceOp::kNone;
  // Of the outputs. Absent: as other ranks say; where none does, as the inputs'. Where the two differ, elements are cast on their way, once
  // (see supportsCast), after the reduction if there is one.
  std::optional<DType> outputDtype = std::nullopt;
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

// What inputs of several contributions are where they overlap, in tensors without a reduction.
enum class Overlap : std::uint8_t {
  kLast = 0,   // the last one wins: higher rank, then higher index
  kAny = 1,    // equal, says the caller: whoever is nearest may supply them
  kError = 2,  // a mistake
};

// Where the ranks' plans are made. They are the same, byte for byte.
enum class WhoPlans : std::uint8_t {
  kChosen = 0,    // as kRank0 where that is over sooner, as kEachRank elsewhere; all ranks find the same (docs/compile.md)
  kRank0 = 1,     // rank 0 makes them all and sends each rank its own: less work in all, but longer to wait for where ranks have cores of
                  // their own
  kEachRank = 2,  // each rank makes its own from all ranks' specs
};

struct LocalSpec {
  std::vector<TensorDecl> tensors;
  std::vector<LocalTensor> inputs;
  std::vector<LocalTensor> outputs;
  bool allowGaps = false;                 // all ranks must agree
  Overlap overlap = Overlap::kLast;       // likewise
  WhoPlans whoPlans = WhoPlans::kChosen;  // likewise
  std::string name;                       // for messages; rank 0's is used
  // Not ok: this rank could not even form its spec. It still takes part in the exchange, so that every rank raises this same error.
  Status localError;
  // This rank's own, and told to nobody. A plan that was made before, in this group or by a process that kept it in `buildDir`, is taken
  // instead of a new one; false: it is made anew, and replaces what was kept.
  bool useCached = true;
  // The folder where plans outlive the process, in spmd/, rank_R/ or local/; empty: none is kept there.
  std::string buildDir;
};

}  // namespace shardwire
