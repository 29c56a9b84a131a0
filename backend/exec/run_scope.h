// The common data of the parts of one PlanRun: the plan, the tensors of this run, and the operation of the run. The run
// owns the scope and the parts, so all live equally long; only the run changes the scope, between runs. Under the
// group's lock.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/exec/activity.h"
#include "ops/boxes/cast_box.h"
#include "ops/plan/plan.h"
#include "shardwire/staging.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// A copy from memory without staging goes in pieces of this size, so other edges make progress in between.
inline constexpr std::size_t kCopySegment = std::size_t{4} << 20;

inline Dims sumOf(const Dims& a, const Dims& b) {
  Dims sum = a;
  for (int d = 0; d < sum.size(); ++d) {
    sum[d] += b[d];
  }
  return sum;
}

// How peers get ordinary memory that they could read, of edges whose way is measured.
enum class OrdinaryWay : unsigned char { kByRule, kRead, kStage };

struct RunScope {
  const Plan& plan;
  const Activity& activity;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  Staging* staging = nullptr;  // null: every tensor is the host's own
  // For what this plan writes: from this rank's memory, from a peer's memory, and from frames.
  StoreHint hint = StoreHint::kAuto;
  StoreHint readHint = StoreHint::kFar;
  StoreHint unpackHint = StoreHint::kFar;
  OrdinaryWay way = OrdinaryWay::kByRule;

  RunContext& context() const { return activity.context(); }
  OperationTag tag() const { return activity.tag(); }

  const TensorView& input(std::int32_t index) const { return inputs[static_cast<std::size_t>(index)]; }
  // The type of the output, which may differ from the type of the sources (PlanMove::sourceDtype).
  DType dtypeOf(const PlanMove& move) const { return outputDtypeOf(plan, move); }
  std::size_t elemBytesOf(const PlanMove& move) const { return elementBytes(dtypeOf(move)); }
  StridedBox outputBox(const PlanMove& move, const Dims& segmentOffset) const {
    return boxOf(outputs[static_cast<std::size_t>(move.output)], sumOf(move.offset, segmentOffset));
  }

  // Whether a box of this rank's tensors may be touched now.
  bool isReady(const StridedBox& box, const Dims& shape, std::size_t elemBytes) const {
    return staging == nullptr || staging->isReady(box.bytes, extentBytes(box, shape, elemBytes));
  }
  void wrote(const StridedBox& box, const Dims& shape, std::size_t elemBytes) const {
    if (staging != nullptr) {
      staging->wrote(box.bytes, extentBytes(box, shape, elemBytes),
                     static_cast<std::size_t>(numElements(shape)) * elemBytes);
    }
  }

  // True for a short edge: all bytes are staged, and nothing is posted. Both ends may differ in this: the frames show
  // the sender's choice.
  bool isSilent(const PlanEdge& edge) const {
    return edge.bytes <= context().inlineBytes ||
           edge.bytes < context().connection(edge.peer).readLimits().minEdgeBytes;
  }
};

}  // namespace shardwire::internal
