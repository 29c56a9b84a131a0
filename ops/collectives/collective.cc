// Turns a call into a program: the family of the collective writes the stages, each a plan over views of the call's
// tensors or of scratch memory.
#include "ops/collectives/collective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "ops/collectives/families.h"
#include "ops/plan/hash.h"

namespace shardwire::internal {

std::string_view collectiveName(Collective kind) {
  static constexpr std::array<std::string_view, 12> kNames = {
      "",           "broadcast", "reduce",  "all_reduce",     "",           "",
      "all_gather", "gather",    "scatter", "reduce_scatter", "all_to_all", "barrier"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view algorithmName(Algorithm algorithm) {
  static constexpr std::array<std::string_view, 6> kNames = {"",     "direct",        "chunks",
                                                             "tree", "dissemination", "hierarchical"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::uint64_t fingerprintOf(const CollectiveCall& call) {
  Hasher hash;
  for (const std::uint64_t part : {static_cast<std::uint64_t>(call.kind), static_cast<std::uint64_t>(call.dtype),
                                   static_cast<std::uint64_t>(call.op), static_cast<std::uint64_t>(call.root),
                                   static_cast<std::uint64_t>(call.numElems)}) {
    hash.add(part);
  }
  return hash.value();
}

std::string describe(const CollectiveCall& call) {
  if (call.kind == Collective::kBarrier) {
    return "barrier";
  }
  if (call.kind == Collective::kAllToAll) {
    return fmt::format("all_to_all({}, sends [{}], receives [{}])", dtypeName(call.dtype),
                       fmt::join(call.inputElems, ", "), fmt::join(call.outputElems, ", "));
  }
  return describe(call, {call.numElems});
}

std::string describe(const CollectiveCall& call, const Dims& shape) {
  std::string text = fmt::format("{}({}{}", collectiveName(call.kind), dtypeName(call.dtype), toString(shape));
  if (call.op != ReduceOp::kNone) {
    text += fmt::format(", {}", reduceOpName(call.op));
  }
  if (call.kind == Collective::kBroadcast || call.kind == Collective::kReduce || call.kind == Collective::kGather ||
      call.kind == Collective::kScatter) {
    text += fmt::format(", root {}", call.root);
  }
  return text + ")";
}

namespace {

Builder* builderOf(Collective kind) {
  switch (kind) {
    case Collective::kBroadcast:
      return broadcastProgram;
    case Collective::kReduce:
      return reduceProgram;
    case Collective::kAllReduce:
      return allReduceProgram;
    case Collective::kAllGather:
    case Collective::kGather:
      return gatherProgram;
    case Collective::kScatter:
      return scatterProgram;
    case Collective::kReduceScatter:
      return reduceScatterProgram;
    case Collective::kAllToAll:
      return allToAllProgram;
    case Collective::kBarrier:
      return barrierProgram;
  }
  return nullptr;
}

}  // namespace

Program programOf(const CollectiveCall& call, Algorithm algorithm, Rank rank, const Topology& topology) {
  Builder* const build = builderOf(call.kind);
  SW_CHECK(build != nullptr);
  Program program = build(call, algorithm, rank, topology);
  SW_CHECK(!program.stages.empty());
  // Ranks that chose different algorithms, or that are in different stages, must not accept each other's frames.
  for (std::size_t i = 0; i < program.stages.size(); ++i) {
    Hasher hash;
    hash.add(fingerprintOf(call));
    hash.add(static_cast<std::uint64_t>(algorithm));
    hash.add(i);
    program.stages[i].plan.fingerprint = hash.value();
  }
  return program;
}

}  // namespace shardwire::internal
