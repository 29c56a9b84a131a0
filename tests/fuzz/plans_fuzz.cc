// The plan that rank 0 sends to another rank: a plan that passes the checks runs, with tensors of the plan's own sizes
// and frames of any bytes, and touches nothing outside of the tensors.
#include <array>

#include "backend/exec/plan_run.h"
#include "ops/plan/redistribute.h"
#include "tests/fuzz/fuzzed_group.h"
#include "tests/fuzz/target.h"
#include "tests/support/random_spec.h"

namespace shardwire::fuzz {
namespace {

constexpr std::size_t kMostParts = 40;

std::optional<std::vector<OwnTensor>> tensorsOfPlan(const std::vector<internal::PlanTensor>& planned) {
  std::vector<std::pair<DType, Dims>> kinds;
  for (const internal::PlanTensor& each : planned) {
    kinds.emplace_back(each.dtype, each.shape);
  }
  return tensorsOf(kinds);
}

std::vector<TensorView> steadyViews(const std::vector<internal::PlanTensor>& planned, std::size_t* used) {
  std::vector<TensorView> views;
  for (const internal::PlanTensor& each : planned) {
    const std::size_t bytes = static_cast<std::size_t>(numElements(each.shape)) * elementBytes(each.dtype);
    views.push_back(TensorView::contiguous(steadyBytes(bytes, used), each.dtype, each.shape));
  }
  return views;
}

// Rank 0's plan, then the frames to rank 0 in a run of the plan on all ranks; nothing where the case has no plan.
std::vector<std::string> honestParts(std::uint64_t seed, internal::Reach reach) {
  const auto specs = testing::makeRandomCase(seed, {.maxRanks = 4}).specs;
  const auto global = internal::mergeSpecs(specs);
  std::vector<std::string> parts;
  std::vector<std::unique_ptr<FuzzedGroup>> groups;
  std::size_t used = 0;
  for (Rank rank = 0; global.isOk() && rank < static_cast<Rank>(specs.size()); ++rank) {
    auto plan = internal::redistribute(*global, rank);
    if (!plan.isOk()) {
      return {};
    }
    if (rank == 0) {
      parts.push_back(internal::serialise(*plan));
    }
    groups.push_back(std::make_unique<FuzzedGroup>(rank, plan->worldSize, reach));
    const std::uint64_t fingerprint = plan->fingerprint;
    const auto inputs = steadyViews(plan->inputs, &used);
    const auto outputs = steadyViews(plan->outputs, &used);
    auto run = std::make_shared<internal::PlanRun>(std::make_shared<const internal::Plan>(std::move(*plan)));
    run->prepare(inputs, outputs);
    groups.back()->start(run, fingerprint);
  }
  for (int round = 0; round < 4; ++round) {
    for (const auto& from : groups) {
      for (std::size_t to = 0; to < groups.size(); ++to) {
        for (std::string& frame : from == groups[to] ? std::vector<std::string>() : from->sent(static_cast<Rank>(to))) {
          groups[to]->take(frame);
          if (to == 0) {
            parts.push_back(std::move(frame));
          }
        }
      }
    }
  }
  return parts;
}

}  // namespace

void parse(std::string_view input) {
  std::vector<std::string> parts = splitParts(input, kMostParts);
  auto plan = internal::deserialise(parts.empty() ? input : parts[0]);
  if (!plan.isOk()) {
    return;
  }
  require(internal::serialise(*plan) == parts[0]);
  static_cast<void>(internal::memoryBytes(*plan));
  const auto inputs = tensorsOfPlan(plan->inputs);
  const auto outputs = tensorsOfPlan(plan->outputs);
  if (!inputs.has_value() || !outputs.has_value() || plan->rank != 0 || plan->worldSize < 2 || plan->worldSize > 4) {
    return;
  }
  FuzzedGroup group(0, plan->worldSize);
  const std::uint64_t fingerprint = plan->fingerprint;
  auto run = std::make_shared<internal::PlanRun>(std::make_shared<const internal::Plan>(std::move(*plan)));
  run->prepare(viewsOf(*inputs), viewsOf(*outputs));
  group.start(run, fingerprint);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    group.take(parts[i]);
  }
}

std::vector<std::string> seeds() {
  using internal::Reach;
  std::vector<std::string> inputs;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::array reaches = {Reach::kNone, Reach::kDirect, Reach::kCopy, Reach::kFetch};
    const std::vector<std::string> parts = honestParts(seed, reaches[seed % reaches.size()]);
    if (!parts.empty()) {
      inputs.push_back(joinParts(parts));
    }
  }
  return inputs;
}

}  // namespace shardwire::fuzz
