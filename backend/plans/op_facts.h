// The facts of a compiled operation, without its runs: for explain, traffic and stats. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/plan/plan_row.h"
#include "ops/plan/redistribute.h"
#include "shardwire/compiled_op.h"
#include "shardwire/export.h"

namespace shardwire::internal {

class OpFacts {
 public:
  // `spec`: null if this rank knows only its own part, or knows all parts through knowsAllBy(). hosts: the hosts of the
  // plan. `seq`: the number of the ranks' agreement in the group, absent without a group. `seq` is part of the plan's
  // fingerprint: two ops of one spec differ, and if their runs come in different orders on two ranks, the runs must not
  // take each other's bytes.
  OpFacts(PlanRow row, std::shared_ptr<const GlobalSpec> spec, std::vector<std::int32_t> hosts,
          std::optional<std::uint64_t> seq);

  // All ranks' encoded specs: merged on demand, for the traffic between all ranks.
  OpFacts& knowsAllBy(std::shared_ptr<const std::vector<std::string>> encodedSpecs);

  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  const LocalSpec& agreed() const { return agreed_; }
  // "compile_op" or "compile_op \"name\"".
  const std::string& label() const { return label_; }

  // Bytes and moves of one run, and the plan's memory.
  OpStats stats() const;
  // The table of explain, without the group's additions. heading: after "compile_op on 4 ranks, 1 tensor".
  std::string explain(const std::string& heading) const;
  std::string explainJson() const;
  // The facts of the same op as number `seq` of a group.
  OpFacts numbered(std::uint64_t seq) const { return OpFacts(row(), spec_, hosts_, seq).knowsAllBy(encodedSpecs_); }
  // The row as given to the constructor: equal for equal specs.
  PlanRow row() const;

 private:
  bool knowsAll() const { return spec_ != nullptr || encodedSpecs_ != nullptr; }
  // The traffic of all ranks, or only of this rank if nothing else is known.
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

// The label of the op with this name; the name may be empty.
SHARDWIRE_EXPORT std::string labelOf(const std::string& name);

// The facts of an op planned without a group (offline_op.cc); null for other ops.
SHARDWIRE_EXPORT const OpFacts* offlineFactsOf(const CompiledOp& op);

}  // namespace shardwire::internal
