// The arguments of compileOp on one rank: the boxes of global tensors that the rank has and wants. Plain values; no
// torch; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire {

// A box in the index space of a tensor: offset[d] <= index[d] < offset[d] + shape[d]. Both have the same number of
// dimensions.
struct Slice {
  Dims offset;
  Dims shape;
  friend bool operator==(const Slice&, const Slice&) = default;
};

// A global tensor, declared by every rank that names the tensor. Two ranks that both give a field must agree.
struct TensorDecl {
  std::string name;           // "" when the op has one tensor only
  std::optional<Dims> shape;  // absent: the bounding box of all ranks' regions
  // Of the inputs. Absent: as other ranks say; where none does, as the outputs'. Each rank gives this or outputDtype,
  // or both.
  std::optional<DType> dtype = DType::kFloat32;
  ReduceOp reduction = ReduceOp::kNone;
  // Dtype of the outputs. Absent: as declared by other ranks, else as the inputs. Where the dtypes differ, elements are
  // cast once (see supportsCast), after the reduction if any.
  std::optional<DType> outputDtype = std::nullopt;
  friend bool operator==(const TensorDecl&, const TensorDecl&) = default;
};

// Where one box of the global tensor lies in a rank's local tensor: local index = global index - slice.offset +
// localOffset.
struct PlacedSlice {
  Slice slice;
  Dims localOffset;
  friend bool operator==(const PlacedSlice&, const PlacedSlice&) = default;
};

// One local tensor (an element of `inputs` or `outputs`): the local shape, and the boxes of the global tensor inside. A
// dict spec is one box at local offset 0; a _StridedShard'ed DTensor may have many boxes.
struct LocalTensor {
  std::int32_t tensor = 0;  // index into LocalSpec::tensors
  Dims localShape;
  std::vector<PlacedSlice> slices;
  // Inputs only. Inputs (of any rank) of one tensor with the same non-zero value hold equal elements wherever they
  // overlap: any holder may supply the elements, and a reduction counts them once. 0: a separate contribution.
  std::uint64_t replicaClass = 0;
  friend bool operator==(const LocalTensor&, const LocalTensor&) = default;
};

// The meaning of overlapping inputs of several contributions, in tensors without a reduction.
enum class Overlap : std::uint8_t {
  kLast = 0,   // the last one wins: higher rank, then higher index
  kAny = 1,    // the caller promises equal elements: the nearest holder may supply them
  kError = 2,  // a mistake
};

// The ranks on which plans are made. The plans are the same, byte for byte.
enum class WhoPlans : std::uint8_t {
  kChosen = 0,  // as kRank0 where that ends sooner, else as kEachRank; all ranks choose the same (docs/compile.md)
  kRank0 = 1,   // rank 0 makes all plans and sends each rank its plan: less work in all, but a longer wait where every
                // rank has a core
  kEachRank = 2,  // each rank makes its own plan from all ranks' specs
};

struct LocalSpec {
  std::vector<TensorDecl> tensors;
  std::vector<LocalTensor> inputs;
  std::vector<LocalTensor> outputs;
  bool allowGaps = false;                 // all ranks must agree
  Overlap overlap = Overlap::kLast;       // likewise
  WhoPlans whoPlans = WhoPlans::kChosen;  // likewise
  std::string name;                       // for messages; rank 0's is used
  // Not ok: this rank could not form its spec. The rank still takes part in the exchange, so that every rank raises
  // this error.
  Status localError;
  // Only for this rank; never sent to other ranks. True: a plan made before, in this group or by a process that kept
  // the plan in `buildDir`, is used instead of a new plan. False: a new plan is made and replaces the kept plan.
  bool useCached = true;
  // The folder where plans outlive the process, in spmd/, rank_R/ or local/; empty: none is kept there.
  std::string buildDir;
};

}  // namespace shardwire
