// Helpers come first: bytes as text, the list of tensors, and the edges of traffic in one rank's plan. row() gives back
// the constructor's row, and stats() counts the plan's bytes. traffic() uses the best source at hand: the merged spec,
// otherwise all ranks' encoded specs, otherwise this rank's plan. explain() and explainJson() print the traffic, as a
// table and as JSON.
#include "backend/plans/op_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ops/plan/hash.h"

namespace shardwire::internal {

namespace {

std::string bytesText(std::uint64_t bytes) {
  if (bytes < 1000) {
    return fmt::format("{} B", bytes);
  }
  const double b = static_cast<double>(bytes);
  return bytes < 1000000      ? fmt::format("{:.1f} kB", b / 1e3)
         : bytes < 1000000000 ? fmt::format("{:.1f} MB", b / 1e6)
                              : fmt::format("{:.2f} GB", b / 1e9);
}

std::string listTensors(const std::vector<TensorDecl>& tensors) {
  constexpr std::size_t kMaxListed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMaxListed, tensors.size()); ++i) {
    const TensorDecl& tensor = tensors[i];
    text += fmt::format(
        "  {} {}{}{}{}\n", tensor.name.empty() ? "tensor" : tensor.name, dtypeName(*tensor.dtype),
        toString(*tensor.shape),
        tensor.reduction == ReduceOp::kNone ? "" : fmt::format(", {}", reduceOpName(tensor.reduction)),
        tensor.outputDtype != tensor.dtype ? fmt::format(", cast to {}", dtypeName(*tensor.outputDtype)) : "");
  }
  return tensors.size() <= kMaxListed ? text : text + fmt::format("  ... and {} more\n", tensors.size() - kMaxListed);
}

// Sorted by source, then destination, like the edges of trafficOf().
std::vector<Traffic::Edge> edgesOf(const Plan& plan) {
  std::vector<Traffic::Edge> edges;
  std::uint64_t local = 0;
  std::uint64_t numLocal = 0;
  for (const PlanMove& move : plan.moves) {
    for (std::uint32_t s = 0; s < move.numSources; ++s) {
      const bool isOwn = plan.sources[move.firstSource + s].rank == plan.rank;
      numLocal += isOwn ? 1 : 0;
      local += isOwn ? stagedBytes(plan, move) : 0;
    }
  }
  if (numLocal > 0) {
    edges.push_back({plan.rank, plan.rank, local, numLocal});
  }
  for (const PlanEdge& edge : plan.sends) {
    edges.push_back({plan.rank, edge.peer, edge.bytes, edge.numItems});
  }
  for (const PlanEdge& edge : plan.receives) {
    edges.push_back({edge.peer, plan.rank, edge.bytes, edge.numItems});
  }
  std::ranges::sort(edges, {}, [](const Traffic::Edge& edge) { return std::pair(edge.source, edge.destination); });
  return edges;
}

std::shared_ptr<const Plan> planOfNumber(Plan plan, std::optional<std::uint64_t> seq) {
  if (seq.has_value()) {
    Hasher number;
    number.add(plan.fingerprint);
    number.add(*seq);
    plan.fingerprint = number.value();
  }
  return std::make_shared<const Plan>(std::move(plan));
}

// Names are the user's: bytes that are not UTF-8 become U+FFFD, since JSON cannot have these bytes.
std::string dumped(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string labelOf(const std::string& name) {
  return name.empty() ? "compile_op" : fmt::format("compile_op \"{}\"", name);
}

OpFacts::OpFacts(PlanRow row, std::shared_ptr<const GlobalSpec> spec, std::vector<std::int32_t> hosts,
                 std::optional<std::uint64_t> seq)
    : agreed_(std::move(row.agreed)),
      hostsHash_(row.hosts),
      fingerprint_(row.plan.fingerprint),
      plan_(planOfNumber(std::move(row.plan), seq)),
      spec_(std::move(spec)),
      hosts_(std::move(hosts)),
      label_(labelOf(agreed_.name)) {}

OpFacts& OpFacts::knowsAllBy(std::shared_ptr<const std::vector<std::string>> encodedSpecs) {
  encodedSpecs_ = std::move(encodedSpecs);
  return *this;
}

PlanRow OpFacts::row() const {
  PlanRow row{agreed_, hostsHash_, *plan_};
  row.plan.fingerprint = fingerprint_;
  return row;
}

OpStats OpFacts::stats() const {
  OpStats stats;
  stats.bytesSent = edgeBytes(plan_->sends);
  stats.bytesReceived = edgeBytes(plan_->receives);
  for (std::uint32_t i = 0; i < plan_->moves.size(); ++i) {
    const PlanMove& move = plan_->moves[i];
    if (i < plan_->numOwnCopies) {
      stats.bytesLocal += stagedBytes(*plan_, move);
    }
    if (move.numSources > 1) {
      stats.bytesReduced += moveBytes(*plan_, move);
    }
  }
  stats.numMoves = plan_->moves.size();
  stats.planBytes = memoryBytes(*plan_);
  return stats;
}

Result<Traffic> OpFacts::traffic() const {
  if (spec_ != nullptr) {
    return trafficOf(*spec_, hosts_);
  }
  if (encodedSpecs_ == nullptr) {
    return Traffic{.edges = edgesOf(*plan_)};
  }
  const Result<GlobalSpec> spec = mergeEncoded(*encodedSpecs_);
  return spec.isOk() ? trafficOf(*spec, hosts_) : Result<Traffic>(spec.status());
}

std::string OpFacts::explain(const std::string& heading) const {
  const Result<Traffic> traffic = this->traffic();
  if (!traffic.isOk()) {
    return traffic.status().message();
  }
  std::string text = fmt::format("{} on {} ranks, {} tensor{}{}\n", label_, plan_->worldSize, agreed_.tensors.size(),
                                 agreed_.tensors.size() == 1 ? "" : "s", heading);
  text += listTensors(agreed_.tensors);
  text += fmt::format("{:>6} {:>6} {:>12} {:>8}\n", "from", "to", "bytes", "boxes");
  std::uint64_t moved = 0;
  for (const Traffic::Edge& edge : traffic->edges) {
    text += fmt::format("{:>6} {:>6} {:>12} {:>8}{}\n", edge.source, edge.destination, bytesText(edge.bytes),
                        edge.pieces, edge.source == edge.destination ? "  (within the rank)" : "");
    moved += edge.source == edge.destination ? 0 : edge.bytes;
  }
  text += knowsAll()
              ? fmt::format("between ranks: {}; the least possible: {}\n", bytesText(moved),
                            bytesText(traffic->lowerBoundBytes))
              : fmt::format("to and from rank {}: {}; another rank planned, and this rank knows only its own part\n",
                            plan_->rank, bytesText(moved));
  return text + fmt::format("rank {} runs {} moves ({} within the rank, {} reductions)\n", plan_->rank,
                            plan_->moves.size(), plan_->numOwnCopies, plan_->moves.size() - plan_->firstCombine);
}

std::string OpFacts::explainJson() const {
  const Result<Traffic> traffic = this->traffic();
  if (!traffic.isOk()) {
    return dumped(nlohmann::json{{"error", traffic.status().message()}});
  }
  nlohmann::json json{{"name", agreed_.name},
                      {"rank", plan_->rank},
                      {"world_size", plan_->worldSize},
                      {"lower_bound_bytes", nullptr},
                      {"tensors", nlohmann::json::array()},
                      {"edges", nlohmann::json::array()}};
  if (knowsAll()) {
    json["lower_bound_bytes"] = traffic->lowerBoundBytes;
  }
  for (const TensorDecl& tensor : agreed_.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"shape", std::vector<std::int64_t>(tensor.shape->begin(), tensor.shape->end())},
                               {"dtype", dtypeName(*tensor.dtype)},
                               {"output_dtype", dtypeName(*tensor.outputDtype)},
                               {"reduction", reduceOpName(tensor.reduction)}});
  }
  for (const Traffic::Edge& edge : traffic->edges) {
    json["edges"].push_back(
        {{"src", edge.source}, {"dst", edge.destination}, {"bytes", edge.bytes}, {"pieces", edge.pieces}});
  }
  return dumped(json);
}

}  // namespace shardwire::internal
