#include "tests/support/run_plans.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/support/naive_cast.h"

namespace shardwire::testing {

namespace {

using internal::Plan;
using internal::PlanEdge;
using internal::PlanMove;
using internal::PlanSendItem;
using internal::PlanSource;

std::size_t flatIndex(const Dims& shape, const Dims& offset, const Dims& within) {
  std::int64_t flat = 0;
  for (int d = 0; d < shape.size(); ++d) {
    flat = flat * shape[d] + offset[d] + within[d];
  }
  return static_cast<std::size_t>(flat);
}

void runMove(const std::vector<Plan>& plans, const Plan& plan, const PlanMove& move, const RankBytes& inputs,
             Bytes& output) {
  const auto& target = plan.outputs[static_cast<std::size_t>(move.output)];
  const std::size_t elemBytes = elementBytes(move.sourceDtype);
  const bool isSmall = internal::naiveIsFloat(move.sourceDtype) && internal::naiveLaneBytes(move.sourceDtype) < 4;
  const DType wide = internal::naiveIsComplex(move.sourceDtype) ? DType::kComplex64 : DType::kFloat32;
  std::vector<const std::byte*> sources(move.numSources);
  Dims within = Dims::filled(move.shape.size(), 0);
  for (int d = 0; d >= 0;) {
    for (std::uint32_t s = 0; s < move.numSources; ++s) {
      const PlanSource& source = plan.sources[move.firstSource + s];
      const auto rank = static_cast<std::size_t>(source.rank);
      const auto input = static_cast<std::size_t>(source.input);
      sources[s] =
          inputs[rank][input].data() + flatIndex(plans[rank].inputs[input].shape, source.offset, within) * elemBytes;
    }
    std::byte* out = output.data() + flatIndex(target.shape, move.offset, within) * elementBytes(target.dtype);
    if (move.numSources == 1) {
      internal::naiveCast(move.sourceDtype, sources[0], target.dtype, out);
    } else {
      reduceAndCast(move.sourceDtype, isSmall ? wide : move.sourceDtype, target.dtype, move.reduction, sources, out);
    }
    for (d = move.shape.size() - 1; d >= 0 && ++within[d] == move.shape[d]; --d) {
      within[d] = 0;
    }
  }
}

// The items that rank `plan.rank` takes from `peer`, in the order of the plan.
std::vector<PlanSendItem> consumedFrom(const Plan& plan, Rank peer) {
  std::vector<PlanSendItem> items;
  for (std::size_t m = 0; m < plan.moves.size(); ++m) {
    bool isFirst = true;
    for (std::uint32_t s = 0; s < plan.moves[m].numSources; ++s) {
      const PlanSource& source = plan.sources[plan.moves[m].firstSource + s];
      if (source.rank == peer) {
        items.push_back({source.input, source.slot, source.offset, plan.moves[m].shape, !isFirst,
                         stagedDtypeOf(plan, plan.moves[m])});
        isFirst = false;
      }
    }
  }
  return items;
}

const PlanEdge* edgeOf(const std::vector<PlanEdge>& edges, Rank peer) {
  const auto at = std::find_if(edges.begin(), edges.end(), [peer](const PlanEdge& edge) { return edge.peer == peer; });
  return at == edges.end() ? nullptr : &*at;
}

}  // namespace

void runPlans(const std::vector<Plan>& plans, const RankBytes& inputs, RankBytes& outputs) {
  for (const Plan& plan : plans) {
    for (const PlanMove& move : plan.moves) {
      runMove(plans, plan, move, inputs,
              outputs[static_cast<std::size_t>(plan.rank)][static_cast<std::size_t>(move.output)]);
    }
  }
}

std::string findEdgeMismatch(const std::vector<Plan>& plans) {
  for (const Plan& receiver : plans) {
    for (const Plan& sender : plans) {
      if (sender.rank == receiver.rank) {
        continue;
      }
      const PlanEdge* receive = edgeOf(receiver.receives, sender.rank);
      const PlanEdge* send = edgeOf(sender.sends, receiver.rank);
      const std::string edge = fmt::format("edge {} -> {}: ", sender.rank, receiver.rank);
      const std::vector<PlanSendItem> consumed = consumedFrom(receiver, sender.rank);
      if ((receive == nullptr) != consumed.empty() || (send == nullptr) != consumed.empty()) {
        return edge + fmt::format("{} items are consumed, receive edge {}, send edge {}", consumed.size(),
                                  receive != nullptr, send != nullptr);
      }
      if (consumed.empty()) {
        continue;
      }
      if (receive->bytes != send->bytes || receive->numItems != send->numItems || receive->inputs != send->inputs ||
          receive->numCopies != send->numCopies) {
        return edge + fmt::format("{} and {} bytes, {} and {} items", send->bytes, receive->bytes, send->numItems,
                                  receive->numItems);
      }
      const auto first = sender.sendItems.begin() + send->first;
      if (!std::equal(consumed.begin(), consumed.end(), first, first + send->count)) {
        return edge + "the items sent are not the items consumed";
      }
      // The combines that need the sender come after all copies from the sender.
      for (std::uint32_t m = receive->first; m < receive->first + receive->count; ++m) {
        if (receiver.sources[receiver.moves[m].firstSource].rank != sender.rank) {
          return edge + "a copy of the edge is from another rank";
        }
      }
    }
  }
  return "";
}

}  // namespace shardwire::testing
