// Makes the plan of every rank, validates each plan, and books the edges of all plans: both plans of an edge must
// agree. Then adds up bytes by rank and by host. The least bytes come from another source, so that the survey checks
// the planner: boxes held are cut out of boxes wanted (leastBytes).
#include "ops/plan/survey.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ops/plan/box_list.h"

namespace shardwire::internal {

namespace {

using LocalsOfTensors = std::vector<std::vector<const LocalTensor*>>;

// By global tensor; of all ranks, and only where the spec may have gaps.
LocalsOfTensors inputsWithGaps(const GlobalSpec& spec) {
  LocalsOfTensors inputs(spec.allowGaps ? spec.tensors.size() : 0);
  for (const RankSpec& rank : spec.ranks) {
    for (const LocalTensor& local : rank.inputs) {
      if (spec.allowGaps) {
        inputs[static_cast<std::size_t>(local.tensor)].push_back(&local);
      }
    }
  }
  return inputs;
}

// The boxes of one tensor in the lists of some ranks.
BoxList boxesOf(const std::vector<const LocalTensor*>& locals, int numDims) {
  BoxList boxes;
  boxes.reset(numDims);
  for (const LocalTensor* local : locals) {
    for (const PlacedSlice& placed : local->slices) {
      BoxRow row;
      rowOf(placed.slice, row.data());
      if (rowElements(numDims, row.data()) > 0) {
        boxes.add(row.data());
      }
    }
  }
  return boxes;
}

// Elements of `wanted` that are missing in `held`, each counted once.
std::uint64_t missingElements(const BoxList& wanted, const BoxList& held) {
  const int numDims = wanted.numDims();
  std::uint64_t elements = 0;
  BoxList rest;
  BoxList next;
  for (std::size_t w = 0; w < wanted.size(); ++w) {
    rest.reset(numDims);
    rest.add(wanted[w]);
    const auto cut = [&](const BoxList& holes, std::size_t count) {
      for (std::size_t h = 0; h < count && !rest.empty(); ++h) {
        if (rowsOverlap(numDims, wanted[w], holes[h])) {
          cutOut(rest, holes[h], next);
          std::swap(rest, next);
        }
      }
    };
    cut(held, held.size());
    cut(wanted, w);  // elements that an earlier box wants were counted there
    for (std::size_t i = 0; i < rest.size(); ++i) {
      elements += rowElements(numDims, rest[i]);
    }
  }
  return elements;
}

Status misfit(Rank rank, const char* what, Rank peer, std::uint64_t own, std::uint64_t theirs) {
  return Status(StatusCode::kInternal, fmt::format("the plans of ranks {} and {} do not fit together: {} {} and {}",
                                                   rank, peer, what, own, theirs));
}

struct EdgeEnd {
  std::uint64_t bytes = 0;
  std::uint64_t numItems = 0;
};

// Every edge is in two plans, which must agree on the edge.
class EdgeBook {
 public:
  Status add(const Plan& plan) {
    for (const PlanEdge& edge : plan.sends) {
      SW_RETURN_IF_ERROR(enter(plan.rank, edge.peer, edge));
    }
    for (const PlanEdge& edge : plan.receives) {
      SW_RETURN_IF_ERROR(enter(edge.peer, plan.rank, edge));
    }
    return Status::ok();
  }
  Status close() const {
    if (open_.empty()) {
      return Status::ok();
    }
    const auto& [ranks, end] = *open_.begin();
    return misfit(ranks.first, "bytes that only one of the two plans has:", ranks.second, end.bytes, 0);
  }

 private:
  Status enter(Rank source, Rank destination, const PlanEdge& edge) {
    const auto [at, isFirst] = open_.try_emplace({source, destination}, EdgeEnd{edge.bytes, edge.numItems});
    if (isFirst) {
      return Status::ok();
    }
    if (at->second.bytes != edge.bytes) {
      return misfit(source, "bytes sent and received are", destination, at->second.bytes, edge.bytes);
    }
    if (at->second.numItems != edge.numItems) {
      return misfit(source, "boxes sent and received are", destination, at->second.numItems, edge.numItems);
    }
    open_.erase(at);
    return Status::ok();
  }

  std::map<std::pair<Rank, Rank>, EdgeEnd> open_;
};

// Of elements that some rank of `ranks` wants and none of `ranks` holds: RankSurvey::leastReceived for several ranks.
std::uint64_t leastBytes(const GlobalSpec& spec, const LocalsOfTensors& allInputs, std::span<const Rank> ranks) {
  LocalsOfTensors held(spec.tensors.size());
  LocalsOfTensors wanted(spec.tensors.size());
  for (const Rank rank : ranks) {
    const RankSpec& own = spec.ranks[static_cast<std::size_t>(rank)];
    for (const LocalTensor& local : own.inputs) {
      held[static_cast<std::size_t>(local.tensor)].push_back(&local);
    }
    for (const LocalTensor& local : own.outputs) {
      wanted[static_cast<std::size_t>(local.tensor)].push_back(&local);
    }
  }
  std::uint64_t bytes = 0;
  for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
    if (wanted[t].empty()) {
      continue;
    }
    const GlobalTensor& tensor = spec.tensors[t];
    const int numDims = tensor.shape.size();
    const std::size_t elemBytes = std::min(elementBytes(tensor.dtype), elementBytes(tensor.dtypeOfOutputs()));
    const BoxList boxes = boxesOf(wanted[t], numDims);
    const std::uint64_t missing = missingElements(boxes, boxesOf(held[t], numDims));
    // Elements that no rank holds cannot be received.
    const std::uint64_t gaps = spec.allowGaps ? missingElements(boxes, boxesOf(allInputs[t], numDims)) : 0;
    bytes += (missing - gaps) * elemBytes;
  }
  return bytes;
}

Result<RankSurvey> surveyRank(const GlobalSpec& spec, const LocalsOfTensors& allInputs, Rank rank, const Plan& plan) {
  const std::string bytes = serialise(plan);
  Result<Plan> read = deserialise(bytes);  // checks every invariant of a plan
  if (!read.isOk()) {
    return Status(read.status().code(), fmt::format("the plan of rank {}: {}", rank, read.status().message()));
  }
  if (!(*read == plan)) {
    return Status(StatusCode::kInternal,
                  fmt::format("the plan of rank {} changed between serialising and reading", rank));
  }
  RankSurvey survey;
  survey.bytesSent = edgeBytes(plan.sends);
  survey.bytesReceived = edgeBytes(plan.receives);
  for (std::uint32_t m = 0; m < plan.numOwnCopies; ++m) {
    survey.bytesLocal += stagedBytes(plan, plan.moves[m]);
  }
  for (const PlanMove& move : plan.moves) {
    const std::uint64_t addend = static_cast<std::uint64_t>(numElements(move.shape)) * elementBytes(move.sourceDtype);
    survey.bytesCombined += move.numSources > 1 ? addend * move.numSources : 0;
  }
  survey.leastReceived = leastBytes(spec, allInputs, std::span(&rank, 1));
  survey.numMoves = plan.moves.size();
  survey.numSendEdges = plan.sends.size();
  survey.numReceiveEdges = plan.receives.size();
  survey.planBytes = memoryBytes(plan);
  survey.encodedBytes = bytes.size();
  return survey;
}

}  // namespace

Result<Survey> surveyOf(const GlobalSpec& spec, HostMap hosts) {
  Result<Traffic> traffic = trafficOf(spec, hosts);
  SW_RETURN_IF_ERROR(traffic.status());
  Survey survey;
  survey.edges = std::move(traffic->edges);
  const Result<std::unique_ptr<Planner>> planner = Planner::create(spec, hosts);
  SW_RETURN_IF_ERROR(planner.status());
  const LocalsOfTensors allInputs = inputsWithGaps(spec);
  EdgeBook book;
  for (std::size_t r = 0; r < spec.ranks.size(); ++r) {
    const auto rank = static_cast<Rank>(r);
    const Plan plan = (*planner)->planOf(rank);
    Result<RankSurvey> counted = surveyRank(spec, allInputs, rank, plan);
    SW_RETURN_IF_ERROR(counted.status());
    survey.ranks.push_back(*counted);
    SW_RETURN_IF_ERROR(book.add(plan));
  }
  SW_RETURN_IF_ERROR(book.close());
  std::map<std::int32_t, std::vector<Rank>> ranksOf;
  for (std::size_t r = 0; r < spec.ranks.size(); ++r) {
    ranksOf[hosts.empty() ? 0 : hosts[r]].push_back(static_cast<Rank>(r));
  }
  // With one host nothing comes from outside, since all elements are there.
  for (const auto& [host, ranks] : ranksOf) {
    survey.leastIntoHost.resize(static_cast<std::size_t>(host) + 1, 0);
    survey.leastIntoHost[static_cast<std::size_t>(host)] = ranksOf.size() == 1 ? 0 : leastBytes(spec, allInputs, ranks);
  }
  return survey;
}

}  // namespace shardwire::internal
