// The plan that rank 0 sends to another rank: a plan that passes the checks runs, with tensors of the plan's own sizes
// and frames of any bytes, and touches nothing outside of the tensors.
#include "backend/exec/plan_run.h"
#include "ops/plan/redistribute.h"
#include "tests/fuzz/fuzzed_group.h"
#include "tests/fuzz/target.h"
#include "tests/support/random_spec.h"

namespace shardwire::fuzz {
namespace {

std::optional<std::vector<OwnTensor>> tensorsOfPlan(const std::vector<internal::PlanTensor>& planned) {
  std::vector<std::pair<DType, Dims>> kinds;
  for (const internal::PlanTensor& each : planned) {
    kinds.emplace_back(each.dtype, each.shape);
  }
  return tensorsOf(kinds);
}

}  // namespace

void parse(std::string_view input) {
  std::vector<std::string> parts = splitParts(input, 8);
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
  std::vector<std::string> inputs;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto global = internal::mergeSpecs(testing::makeRandomCase(seed, {.maxRanks = 4}).specs);
    const auto plan = global.isOk() ? internal::redistribute(*global, 0) : Result<internal::Plan>(global.status());
    if (plan.isOk()) {
      inputs.push_back(joinParts({internal::serialise(*plan)}));
    }
  }
  return inputs;
}

}  // namespace shardwire::fuzz
