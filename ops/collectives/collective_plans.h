// Each collective as a Plan: the same plain data that compileOp makes, so one executor runs both. Pure; cost in each comment, n = ranks,
// B = bytes of one rank's tensor, bytes as moved between ranks. Tensors are flat and contiguous here.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ops/plan/plan.h"

namespace shardwire::internal {

enum class Collective : std::uint8_t {
  kBroadcast = 1,      // root's input -> everyone else's output. (n - 1) B
  kReduce = 2,         // everyone's input -> root's output. (n - 1) B
  kAllReduce = 3,      // everyone's input -> everyone's output, in one step: n (n - 1) B; for short tensors
  kReduceChunks = 4,   // everyone's input -> my chunk of the output. (n - 1) B; first half of the long all-reduce
  kGatherChunks = 5,   // my chunk -> all other chunks of the output. (n - 1) B; second half
  kAllGather = 6,      // everyone's input -> outputs[r] on every rank. n (n - 1) B
  kGather = 7,         // everyone's input -> root's outputs[r]. (n - 1) B
  kScatter = 8,        // root's inputs[r] -> rank r's output. (n - 1) B
  kReduceScatter = 9,  // everyone's inputs[r] -> rank r's output. n (n - 1) B
};

struct CollectiveKey {
  Collective kind = Collective::kBroadcast;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kNone;
  Rank root = 0;
  std::int64_t numElems = 0;  // of one rank's tensor (of each of them where there is a list)
  friend bool operator==(const CollectiveKey&, const CollectiveKey&) = default;
};

// Equal exactly for calls that fit together.
std::uint64_t fingerprintOf(const CollectiveKey& key);
// The plan of `rank`. Inputs and outputs in the order of the comments above; a rank without a part in it has none.
Plan collectivePlan(const CollectiveKey& key, Rank rank, int worldSize);
// [first, last) of `rank`'s chunk in kReduceChunks and kGatherChunks: even to within one cache line, the same cut on every rank.
std::pair<std::int64_t, std::int64_t> chunkOf(const CollectiveKey& key, Rank rank, int worldSize);

// inputs[r] elements go to rank r, outputs[r] elements come from it. Each rank knows its own counts only, so a disagreement shows when the
// bytes meet. n (n - 1) B / n
Plan allToAllPlan(DType dtype, std::span<const std::int64_t> inputElems, std::span<const std::int64_t> outputElems, Rank rank);

}  // namespace shardwire::internal
