// A collective as a plain value, and the program that planning yields: stages, each a Plan over parts of the caller's
// tensors. Pure. Tensors are flat and contiguous here; n = ranks, B = bytes of one rank's tensor, costs are bytes moved
// between ranks.
//
// One file per family holds the algorithms and their cost. select.h chooses the algorithm. programOf() below is the
// only entry point.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/plan/plan.h"

namespace shardwire::internal {

// Values go into fingerprints: never reuse one.
enum class Collective : std::uint8_t {
  kBroadcast = 1,
  kReduce = 2,
  kAllReduce = 3,
  kAllGather = 6,
  kGather = 7,
  kScatter = 8,
  kReduceScatter = 9,
  kAllToAll = 10,
  kBarrier = 11,
};
inline constexpr Collective kCollectives[] = {Collective::kBroadcast,     Collective::kReduce,   Collective::kAllReduce,
                                              Collective::kAllGather,     Collective::kGather,   Collective::kScatter,
                                              Collective::kReduceScatter, Collective::kAllToAll, Collective::kBarrier};
// "all_reduce"
std::string_view collectiveName(Collective kind);

enum class Algorithm : std::uint8_t {
  kDirect = 1,         // every rank reads each wanted box from a rank that holds the box, in one stage
  kChunks = 2,         // cut into n chunks: each rank makes one chunk, then the chunks are put together
  kTree = 3,           // of a broadcast: binomial, ceil(log2 n) stages; of an all_reduce: see rank_tree.h
  kDissemination = 4,  // barrier in ceil(log2 n) stages, two messages each
  kHierarchical = 5,   // as kChunks, but the chunks cross between two hosts once: see hierarchy.h
};
std::string_view algorithmName(Algorithm algorithm);

// Where the ranks are: what the choice of an algorithm may depend on, equal on all ranks.
struct Topology {
  int worldSize = 1;
  int numHosts = 1;
  std::vector<std::int32_t> hosts;  // by rank: equal numbers share a host; empty: all on one
};

// One call, without its memory. Only kAllToAll has the spans, which borrow.
struct CollectiveCall {
  Collective kind = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kNone;
  Rank root = 0;
  std::int64_t numElems = 0;                 // of one rank's tensor (of each tensor of a list); not kAllToAll
  std::span<const std::int64_t> inputElems;  // kAllToAll: elements for each rank
  std::span<const std::int64_t> outputElems;
};

// A part of the caller's tensors, or of scratch memory with the lifetime of the operation.
struct StageTensor {
  enum class From : std::uint8_t { kInput, kOutput, kScratch };
  From from = From::kInput;
  std::int32_t index = 0;  // in the caller's list
  std::int64_t first = 0;  // elements
  std::int64_t numElems = 0;
};

struct Stage {
  Plan plan;
  std::vector<StageTensor> inputs;  // as plan.inputs
  std::vector<StageTensor> outputs;
  // starts when the stage before is done: reads bytes written there, or writes bytes that other ranks read there
  bool afterPrevious = false;
};

// The stages of one rank; every rank has equally many.
struct Program {
  std::vector<Stage> stages;
  std::int64_t scratchElems = 0;
};

// Equal exactly for calls that fit together. The splits of an all-to-all are left out, since each rank knows only its
// own splits.
std::uint64_t fingerprintOf(const CollectiveCall& call);
// "all_reduce(float32[1024], sum)"; with the shape of one rank's tensor, "all_reduce(float32[32, 32], sum)".
std::string describe(const CollectiveCall& call);
std::string describe(const CollectiveCall& call, const Dims& shape);
// Precondition: `algorithm` is one of algorithmsOf(call.kind).
Program programOf(const CollectiveCall& call, Algorithm algorithm, Rank rank, const Topology& topology);

}  // namespace shardwire::internal
