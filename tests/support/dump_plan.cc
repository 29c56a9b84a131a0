#include "tests/support/dump_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardwire::internal {
namespace {

std::string describe(const PlanSource& source) {
  return fmt::format("rank {} inputs[{}] at {}", source.rank, source.input, toString(source.offset));
}

void dumpTensors(const char* list, const std::vector<PlanTensor>& tensors, std::string& text) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    text += fmt::format("  {}[{}]: {} {}\n", list, i, dtypeName(tensors[i].dtype), toString(tensors[i].shape));
  }
}

void dumpMoves(const Plan& plan, std::uint32_t first, std::uint32_t end, std::string& text) {
  for (std::uint32_t m = first; m < end; ++m) {
    const PlanMove& move = plan.moves[m];
    text += fmt::format("    outputs[{}] {} at {} = ", move.output, toString(move.shape), toString(move.offset));
    if (move.numSources > 1) {
      text += fmt::format("{} of ", reduceOpName(move.reduction));
    }
    for (std::uint32_t s = 0; s < move.numSources; ++s) {
      text += (s == 0 ? "" : ", ") + describe(plan.sources[move.firstSource + s]);
    }
    if (move.sourceDtype != outputDtypeOf(plan, move)) {
      text += fmt::format(", cast from {}", dtypeName(move.sourceDtype));
    }
    text += "\n";
  }
}

}  // namespace

std::string dump(const Plan& plan) {
  std::string text =
      fmt::format("plan of rank {} of {}, fingerprint {:016x}\n", plan.rank, plan.worldSize, plan.fingerprint);
  dumpTensors("inputs", plan.inputs, text);
  dumpTensors("outputs", plan.outputs, text);
  if (plan.numOwnCopies > 0) {
    text += fmt::format("  own copies: {}\n", plan.numOwnCopies);
    dumpMoves(plan, 0, plan.numOwnCopies, text);
  }
  for (const PlanEdge& edge : plan.receives) {
    text += fmt::format("  from rank {}: {} bytes in {} boxes of its inputs [{}], {} copies\n", edge.peer, edge.bytes,
                        edge.numItems, fmt::join(edge.inputs, ", "), edge.count);
    dumpMoves(plan, edge.first, edge.first + edge.count, text);
  }
  if (plan.firstCombine < plan.moves.size()) {
    text += fmt::format("  combines: {}\n", plan.moves.size() - plan.firstCombine);
    dumpMoves(plan, plan.firstCombine, static_cast<std::uint32_t>(plan.moves.size()), text);
  }
  for (const PlanEdge& edge : plan.sends) {
    text += fmt::format("  to rank {}: {} bytes in {} boxes of my inputs [{}]\n", edge.peer, edge.bytes, edge.numItems,
                        fmt::join(edge.inputs, ", "));
    for (std::uint32_t i = edge.first; i < edge.first + edge.count; ++i) {
      const PlanSendItem& item = plan.sendItems[i];
      text += fmt::format("    inputs[{}] {} at {}{}\n", item.input, toString(item.shape), toString(item.offset),
                          item.withPrevious ? " with the one before" : "");
    }
  }
  return text;
}

}  // namespace shardwire::internal
