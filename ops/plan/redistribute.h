// GlobalSpec x rank -> Plan: the compiler behind compileOp. Pure, deterministic; every rank calls it with the same
// spec.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/plan/global_spec.h"
#include "ops/plan/plan.h"

namespace shardwire::internal {

// Which ranks share a host: hosts[r] == hosts[q] when r reaches q by shared memory. Empty: all on one host.
using HostMap = std::span<const std::int32_t>;

// The plan of `rank`. Unless spec.allowGaps: kGap listing the first uncovered regions and the ranks that want them. The
// text is the same on every rank, so every output of every rank is checked for gaps (cheaply).
Result<Plan> redistribute(const GlobalSpec& spec, Rank rank, HostMap hosts = {});

// The plans of several ranks of one spec; the common part is computed once. Any thread, one at a time.
class Planner {
 public:
  // Errors: those of redistribute. `spec` must outlive the planner.
  static Result<std::unique_ptr<Planner>> create(const GlobalSpec& spec, HostMap hosts = {});
  ~Planner();
  // As redistribute gives it, byte for byte. 0 <= rank < ranks of the spec.
  Plan planOf(Rank rank) const;

 private:
  struct Common;
  explicit Planner(std::unique_ptr<const Common> common);
  const std::unique_ptr<const Common> common_;
};

// Bytes per directed pair of ranks, for explain and plots, and the least bytes any plan must move between ranks.
struct Traffic {
  struct Edge {
    Rank source;
    Rank destination;
    std::uint64_t bytes;
    std::uint64_t pieces;
    friend bool operator==(const Edge&, const Edge&) = default;
  };
  std::vector<Edge> edges;  // source == destination included; by (source, destination)
  // Output elements that the wanting rank does not hold; with a reduction, every remote addend. An element that a rank
  // wants several times counts once, although a plan moves the element for each output.
  std::uint64_t lowerBoundBytes = 0;
};
Result<Traffic> trafficOf(const GlobalSpec& spec, HostMap hosts = {});

}  // namespace shardwire::internal
