// What is known of a compiled operation besides how to run it: for explain, traffic and stats. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/plan/plan_row.h"
#include "ops/plan/redistribute.h"
#include "shardwire/compiled_op.h"

namespace shardwire::internal {

class OpFacts {
 public:
  // `spec`: null where this rank knows of its own part only, or of all by knowsAllBy(). hosts: those that it was planned for. `seq`: the
  // number in the group by which the ranks agreed on it, absent without a group. It goes into the plan's fingerprint: two ops of one spec
  // are two, and whose runs come in another order on another rank must not take each other's bytes.
  OpFacts(PlanRow row, std::shared_ptr<const GlobalSpec> spec, std::vector<std::int32_t> hosts, std::optional<std::uint64_t> seq);

  // All ranks' encoded specs: merged when somebody asks who sends what to whom.
  OpFacts& knowsAllBy(std::shared_ptr<const std::vector<std::string>> encodedSpecs);

  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  const LocalSpec& agreed() const { return agreed_; }
  // "compile_op" or "compile_op \"name\"".
  const std::string& label() const { return label_; }

  // Bytes and moves of one run, and the plan's memory.
  OpStats stats() const;
  // The table of explain, without what a group adds. heading: after "compile_op on 4 ranks, 1 tensor".
  std::string explain(const std::string& heading) const;
  std::string explainJson() const;
  // Of the same op as number `seq` of a group.
  OpFacts numbered(std::uint64_t seq) const { return OpFacts(row(), spec_, hosts_, seq).knowsAllBy(encodedSpecs_); }
  // The row as it was given: equal for equal specs.
  PlanRow row() const;

 private:
  bool knowsAll() const { return spec_ != nullptr || encodedSpecs_ != nullptr; }
  // All of the group's, or this rank's own where that is all that is known.
  Result<Traffic> traffic() const;

  LocalSpec agreed_;
  std::uint64_t hostsHash_;
  std::uint64_t fingerprint_;  // without `seq`
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const GlobalSpec> spec_;
  std::shared_ptr<const std::vector<std::string>> encodedSpecs_;
  std::vector<std::int32_t> hosts_;
  std::string label_;
};

std::string labelOf(const std::string& name);

// Of an op that was planned without a group (offline_op.cc); null for others.
const OpFacts* offlineFactsOf(const CompiledOp& op);

}  // namespace shardwire::internal
