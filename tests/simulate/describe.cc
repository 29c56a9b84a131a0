// The texts of schedules: the first lines of a trace, and of a seed that fails.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "tests/simulate/schedule.h"

namespace shardwire::simulate {

std::string revocationBy(Rank rank) {
  return fmt::format("rank {} (simulated) revoked the group", rank);
}

std::string describe(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kCollective:
      return fmt::format("operation {}: {}", operation.number, testing::describe(operation.call));
    case OperationKind::kCompiled:
      return fmt::format("operation {}: compile_op of case {}, {} runs", operation.number, operation.specs.seed,
                         operation.numRuns);
    case OperationKind::kChain: {
      std::string steps;
      for (const ChainStep& step : operation.chain) {
        steps += step.isSum ? " sum" : fmt::format(" broadcast from {}", step.root);
      }
      return fmt::format("operation {}: a chain over {} elements:{}", operation.number, operation.chainElems, steps);
    }
    case OperationKind::kRequests:
      return fmt::format("operation {}: requests to memory of other ranks", operation.number);
    case OperationKind::kExchange:
      return fmt::format("operation {}: an exchange of bytes", operation.number);
  }
  return "";
}

std::string describe(const Fault& fault, const Schedule& schedule) {
  const char* const row = schedule.rowName();
  const std::string when = fault.numFrames > 0 ? fmt::format("with its frame {}", fault.numFrames)
                                               : fmt::format("after {}", inMilliseconds(fault.after));
  const std::string group = schedule.hasSeveralGroups() ? schedule.labelOf(fault.group) + " " : "";
  switch (fault.kind) {
    case FaultKind::kKill:
      return fmt::format("fault {}: {} {} is killed {}", fault.number, row, fault.rank, when);
    case FaultKind::kHostDies:
      return fmt::format("fault {}: {} {} loses its host {}", fault.number, row, fault.rank, when);
    case FaultKind::kStop:
      return fmt::format("fault {}: {} {} stops after {} for {}", fault.number, row, fault.rank,
                         inMilliseconds(fault.after), inMilliseconds(fault.duration));
    case FaultKind::kCut:
      return fmt::format("fault {}: the link between {} {} and {} is cut after {}", fault.number, schedule.rowsName(),
                         fault.rank, fault.peer, inMilliseconds(fault.after));
    case FaultKind::kHold:
      return fmt::format("fault {}: nothing passes between {} {} and {} after {} for {}", fault.number,
                         schedule.rowsName(), fault.rank, fault.peer, inMilliseconds(fault.after),
                         inMilliseconds(fault.duration));
    case FaultKind::kRevoke:
      return fmt::format("fault {}: {} {} revokes the group {}{}", fault.number, row, fault.rank, group, when);
  }
  return "";
}

std::string describeGroups(const Schedule& schedule) {
  if (!schedule.hasSeveralGroups()) {
    return "";
  }
  std::string text =
      fmt::format("{} for each process; after a failure a process {}, grace {} ms\n",
                  schedule.hasThreads ? "a thread for each group" : "one thread",
                  schedule.afterFailure == AfterFailure::kGoesOn
                      ? "goes on in the other groups"
                      : fmt::format("stops, and ends its groups within {}", inMilliseconds(schedule.longestStay)),
                  std::chrono::duration_cast<std::chrono::milliseconds>(schedule.options.grace).count());
  for (std::size_t group = 0; group < schedule.groups.size(); ++group) {
    text += fmt::format("group {}: processes {} by rank\n", schedule.labelOf(group),
                        fmt::join(schedule.groups[group], " "));
  }
  return text;
}

std::string describe(const FetchOptions& fetches) {
  return !fetches.isDrawn
             ? ""
             : fmt::format(
                   "{} % of the wires serve no fetches, {} parts with pauses up to {}, {}, {} requests at once, {} % "
                   "refused, edges from {} B, runs from {} and {} B\n",
                   fetches.withoutPercent, fetches.mostParts, inMilliseconds(fetches.longestPause),
                   fetches.overtakes ? "answers overtake" : "in order", fetches.mostRequests, fetches.refusedPercent,
                   fetches.minEdgeBytes, fetches.minRunBytes, fetches.minLocalRunBytes);
}

std::string describe(const Schedule& schedule) {
  const NetworkOptions& network = schedule.network;
  std::string text = fmt::format(
      "seed {}: {} ranks on hosts {}, {} operations in flight, inline {} B, ring {} B, spin {} ns, check {}; {} % of "
      "frames late up to {}, {} stalls, {} % of tensors exposed, short writes of {} B, {} % full lanes, control lane "
      "{} B{}\n",
      schedule.seed, schedule.numRanks, fmt::join(schedule.hosts, " "), schedule.window, schedule.options.inlineBytes,
      schedule.options.ringBytes, schedule.options.spin.count(), schedule.options.checkAll, network.spikePercent,
      inMilliseconds(network.longestSpike), network.numStalls, network.exposedPercent, network.shortWriteBytes,
      network.fullPercent, network.capacities[static_cast<std::size_t>(internal::Lane::kControl)],
      network.lateness == Lateness::kNone  ? ""
      : network.lateness == Lateness::kAll ? ", links when first needed"
                                           : ", links to other hosts when first needed");
  text += describe(network.fetches);
  text += describeGroups(schedule);
  text += schedule.makesAnew ? "after a loss the living ranks make the group anew: r1, r2\n" : "";
  text += schedule.longestIdle > 0
              ? fmt::format("before the first call there a rank waits up to {}\n", inMilliseconds(schedule.longestIdle))
              : "";
  for (const Operation& operation : schedule.operations) {
    const std::string label = schedule.labelOf(operation.group);
    text += label + (label.empty() ? "" : ": ") + describe(operation) + "\n";
  }
  for (const Fault& fault : schedule.faults) {
    text += describe(fault, schedule) + "\n";
  }
  return text;
}

}  // namespace shardwire::simulate
