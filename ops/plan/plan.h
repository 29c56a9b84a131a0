// The work of one rank in one run, as flat plain data: which boxes the rank sends to which peer, and which boxes of its
// outputs the rank writes from which sources. Plans are made by redistribute() and by the collectives and walked by the
// executor; they are printed, compared, serialised and fuzzed without any group.
//
// A plan names boxes of local tensors, never addresses: the executor adds pointers and strides when a run starts.
//
// Order is the contract between two ranks. On the edge s -> r, rank s supplies its SendItems in exactly the order in
// which the moves of r consume them: first the copies of r from s, then, in the order of r's combines, every source on
// s. Both sides derive this order from the same GlobalSpec.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// The required dtype and shape of a tensor of the caller.
struct PlanTensor {
  DType dtype = DType::kFloat32;
  Dims shape;  // local
  friend bool operator==(const PlanTensor&, const PlanTensor&) = default;
};

// A box of a supplier's local input. The shape is that of the move that uses the box.
struct PlanSource {
  Rank rank = 0;
  std::int32_t input = 0;  // index into the inputs of `rank`
  std::int32_t slot = 0;   // index of `input` among the inputs used on the edge rank -> this rank (PlanEdge::inputs);
                           // for own inputs = input
  Dims offset;             // in the local input of `rank`
  friend bool operator==(const PlanSource&, const PlanSource&) = default;
};

// One box of one of my outputs, written once: a copy of the only source, or the reduction of all sources in order.
struct PlanMove {
  std::int32_t output = 0;
  Dims offset;  // in my local output
  Dims shape;   // every extent > 0
  std::uint32_t firstSource = 0;
  std::uint32_t numSources = 1;
  ReduceOp reduction = ReduceOp::kNone;  // kNone exactly when numSources == 1
  DType sourceDtype = DType::kFloat32;   // of all sources; elements are cast where the output has another dtype
  friend bool operator==(const PlanMove&, const PlanMove&) = default;
};

// A box of one of my inputs, wanted by a peer.
struct PlanSendItem {
  std::int32_t input = 0;
  std::int32_t slot = 0;  // index into PlanEdge::inputs
  Dims offset;
  Dims shape;
  // The peer combines this box with the box of the item before (two inputs of mine overlap there). When staged, the two
  // boxes travel segment by segment in turn, so that the peer never has to keep one box while waiting for the other.
  bool withPrevious = false;
  DType stagedDtype = DType::kFloat32;  // dtype of the elements in frames (see stagedDtype below)
  friend bool operator==(const PlanSendItem&, const PlanSendItem&) = default;
};

// All data that flows between me and one peer in one direction.
struct PlanEdge {
  Rank peer = 0;
  // Sends: range of Plan::sendItems. Receives: range of Plan::moves, the copies whose source is `peer` (combines are
  // apart).
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t numCopies =
      0;  // the receiver copies the first numCopies items and combines the rest (receives: all items, see above)
  std::uint64_t bytes = 0;           // of all items of the edge, combines' sources included, as they are when staged
  std::uint64_t numItems = 0;        // boxes on the edge, combines' sources included
  std::vector<std::int32_t> inputs;  // the supplier's inputs used on this edge, ascending
  friend bool operator==(const PlanEdge&, const PlanEdge&) = default;
};

struct Plan {
  Rank rank = 0;
  std::int32_t worldSize = 1;
  // Equal on all ranks that run the same operation. Every frame carries the fingerprint, so a different operation on a
  // peer is detected.
  std::uint64_t fingerprint = 0;
  std::vector<PlanTensor> inputs;
  std::vector<PlanTensor> outputs;
  std::vector<PlanSource> sources;
  // Own copies (source rank == rank) first, then the copies of each receive edge, then the combines (numSources >= 2).
  std::vector<PlanMove> moves;
  std::uint32_t numOwnCopies = 0;
  std::uint32_t firstCombine = 0;
  std::vector<PlanEdge>
      receives;  // by distance from rank: (rank + 1) % worldSize first, so that not all ranks start at the same peer
  std::vector<PlanSendItem> sendItems;
  std::vector<PlanEdge> sends;  // likewise
  friend bool operator==(const Plan&, const Plan&) = default;
};

// kInternal naming the first broken invariant: ranges, boxes inside tensors, slots, edge order, byte counts.
Status validate(const Plan& plan);
// Versioned, fixed-width little-endian bytes; deserialise checks every bound and then validate().
std::string serialise(const Plan& plan);
Result<Plan> deserialise(std::string_view bytes);

// Bytes that all the edges move.
std::uint64_t edgeBytes(const std::vector<PlanEdge>& edges);
// Bytes of a plan in memory, for stats.
std::uint64_t memoryBytes(const Plan& plan);

// The dtype of a box in frames: the narrower of the two types, so that few bytes travel and each element is cast once,
// on either side. Combined elements travel uncast, because rounding comes after combining.
inline DType stagedDtype(DType source, DType target, bool isCombined) {
  return !isCombined && elementBytes(target) < elementBytes(source) ? target : source;
}
inline DType outputDtypeOf(const Plan& plan, const PlanMove& move) {
  return plan.outputs[static_cast<std::size_t>(move.output)].dtype;
}
inline DType stagedDtypeOf(const Plan& plan, const PlanMove& move) {
  return stagedDtype(move.sourceDtype, outputDtypeOf(plan, move), move.numSources > 1);
}
// Bytes of one move's box from one source, as they are when staged.
inline std::uint64_t stagedBytes(const Plan& plan, const PlanMove& move) {
  return static_cast<std::uint64_t>(numElements(move.shape)) * elementBytes(stagedDtypeOf(plan, move));
}
// Bytes of one move's box of the output.
inline std::uint64_t moveBytes(const Plan& plan, const PlanMove& move) {
  return static_cast<std::uint64_t>(numElements(move.shape)) * elementBytes(outputDtypeOf(plan, move));
}

}  // namespace shardwire::internal
