// An op without a group: the facts, and one clear error for every attempt to move data.
#include <fmt/format.h>

#include "backend/plans/op_facts.h"
#include "backend/plans/plan_file.h"
#include "shardwire/offline.h"

namespace shardwire {

namespace internal {

namespace {

class OfflineOp final : public CompiledOp {
 public:
  explicit OfflineOp(OpFacts facts, PlanProvenance provenance = {})
      : facts_(std::move(facts)), provenance_(std::move(provenance)) {}

  Status check(std::span<const TensorView>, std::span<const TensorView>) const override { return refused(); }
  Result<WorkPtr> run(std::span<const TensorView>, std::span<const TensorView>, std::shared_ptr<void>,
                      std::optional<Duration>, Staging*) override {
    return refused();
  }
  Result<std::unique_ptr<BoundOp>> bind(std::span<const TensorView>, std::span<const TensorView>, std::shared_ptr<void>,
                                        std::optional<Duration>) override {
    return refused();
  }
  OpStats stats() const override { return facts_.stats(); }
  std::string explain() const override { return facts_.explain("; planned without a group"); }
  std::string explainJson() const override { return facts_.explainJson(); }
  std::string planBytes() const override { return encodeRow(facts_.row()); }
  const PlanProvenance& planProvenance() const override { return provenance_; }
  const std::vector<LocalTensor>& inputs() const override { return facts_.agreed().inputs; }
  const std::vector<LocalTensor>& outputs() const override { return facts_.agreed().outputs; }
  const std::vector<TensorDecl>& tensors() const override { return facts_.agreed().tensors; }

  const OpFacts& facts() const { return facts_; }

 private:
  Status refused() const {
    return {StatusCode::kUnsupported,
            fmt::format("{} was planned for rank {} of {} without a group, and has none to run in: attach it to a "
                        "group of {} ranks first, or compile it in the group",
                        facts_.label(), facts_.plan()->rank, facts_.plan()->worldSize, facts_.plan()->worldSize)};
  }

  const OpFacts facts_;
  const PlanProvenance provenance_;
};

}  // namespace

const OpFacts* offlineFactsOf(const CompiledOp& op) {
  const auto* offline = dynamic_cast<const OfflineOp*>(&op);
  return offline == nullptr ? nullptr : &offline->facts();
}

}  // namespace internal

namespace {

Result<internal::OpFacts> planNow(std::span<const LocalSpec> specs, Rank rank, std::span<const std::int32_t> hosts) {
  Result<internal::GlobalSpec> merged = internal::mergeSpecs(specs);
  SW_RETURN_IF_ERROR(merged.status());
  auto spec = std::make_shared<const internal::GlobalSpec>(std::move(*merged));
  Result<internal::Plan> plan = internal::redistribute(*spec, rank, hosts);
  SW_RETURN_IF_ERROR(plan.status());
  internal::PlanRow row{internal::specOf(*spec, rank), internal::hashOf(hosts, specs.size()), std::move(*plan)};
  return internal::OpFacts(std::move(row), std::move(spec), {hosts.begin(), hosts.end()}, std::nullopt);
}

// `rank` is one of the specs' ranks; `hosts` is empty, or has each rank. The spec of `rank` says where plans are kept.
Result<std::shared_ptr<CompiledOp>> planKept(std::span<const LocalSpec> specs, Rank rank,
                                             std::span<const std::int32_t> hosts) {
  const LocalSpec& asked = specs[static_cast<std::size_t>(rank)];
  auto encoded = std::make_shared<std::vector<std::string>>();
  for (LocalSpec spec : specs) {
    spec.whoPlans = WhoPlans::kChosen;
    encoded->push_back(internal::encodeSpec(spec));
  }
  const internal::PlanFile file(asked.buildDir,
                                {.mode = asked.whoPlans == WhoPlans::kEachRank ? fmt::format("rank_{}", rank) : "local",
                                 .rank = rank,
                                 .worldSize = static_cast<int>(specs.size()),
                                 .specs = internal::digestOf(std::span<const std::string>(*encoded)),
                                 .hosts = hosts});
  PlanProvenance provenance{.path = file.path()};
  if (std::optional<internal::PlanRow> row = asked.useCached ? file.read(asked) : std::nullopt) {
    provenance.from = PlanProvenance::From::kDisk;
    internal::OpFacts facts(std::move(*row), nullptr, {hosts.begin(), hosts.end()}, std::nullopt);
    facts.knowsAllBy(std::move(encoded));
    return std::shared_ptr<CompiledOp>(std::make_shared<internal::OfflineOp>(std::move(facts), std::move(provenance)));
  }
  Result<internal::OpFacts> facts = planNow(specs, rank, hosts);
  SW_RETURN_IF_ERROR(facts.status());
  provenance.whyNoFile = file.write(facts->row()).message();
  return std::shared_ptr<CompiledOp>(std::make_shared<internal::OfflineOp>(std::move(*facts), std::move(provenance)));
}

}  // namespace

Result<std::shared_ptr<CompiledOp>> planOffline(std::span<const LocalSpec> specs, Rank rank,
                                                std::span<const std::int32_t> hosts) {
  const bool areAllHosts = hosts.empty() || hosts.size() == specs.size();  // otherwise planNow() has the error
  if (rank >= 0 && static_cast<std::size_t>(rank) < specs.size() && areAllHosts &&
      !specs[static_cast<std::size_t>(rank)].buildDir.empty()) {
    return planKept(specs, rank, hosts);
  }
  Result<internal::OpFacts> facts = planNow(specs, rank, hosts);
  SW_RETURN_IF_ERROR(facts.status());
  return std::shared_ptr<CompiledOp>(std::make_shared<internal::OfflineOp>(std::move(*facts)));
}

Result<std::shared_ptr<CompiledOp>> readPlan(std::string_view bytes) {
  Result<internal::PlanRow> row = internal::decodeRow(bytes);
  SW_RETURN_IF_ERROR(row.status());
  return std::shared_ptr<CompiledOp>(
      std::make_shared<internal::OfflineOp>(internal::OpFacts(std::move(*row), nullptr, {}, std::nullopt)));
}

}  // namespace shardwire
