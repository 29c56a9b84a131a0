// findFaults() goes through the reports of all ranks. isAbout() has the texts that an error about each kind of fault
// may have, in the numbering of one group; isAboutOtherGroup() knows the texts that name the failure of another group.
#include "tests/simulate/promises.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

namespace shardwire::simulate {
namespace {

// Longer than all waits that no lost rank or link prolongs.
constexpr Time kLongWait = 5 * kSecond;
// The silence of a host counts as a loss after this time at the latest.
constexpr Time kSilenceCounts = 10 * kSecond;
// A rank of a failed group stays for so long for ranks without a link (docs/errors.md).
constexpr Time kStaysFor = kSecond / 2;
// The most time between the failure of a group and the end of its operations.
constexpr Time kEndsOperation = kSecond / 1000;
// Of errors that give the failure of another group as the reason.
constexpr const char* kOtherGroup = "another group of its process";

// A rank left without a notice. Late links: the others stay for seconds for a rank without a link, and then leave.
bool isAboutRankThatLeft(const Status& failure, const Schedule& drawn, const Fault& fault, bool hasRankLeft) {
  const bool isLate = drawn.network.lateness != Lateness::kNone;
  const bool mayLeave = fault.kind == FaultKind::kStop ? hasRankLeft || isLate : hasRankLeft && isLate;
  return mayLeave && (failure.message().find("(simulated) left the group") != std::string::npos ||
                      failure.message().find("(simulated) left before it was joined") != std::string::npos);
}

// A group stays for seconds for room in a full lane, and then leaves without a notice to the stopped rank.
bool isStoppedRankWithFullLane(const Report& report, const Schedule& drawn, const Fault& fault) {
  return fault.kind == FaultKind::kStop && fault.rank == report.rank && drawn.hasFullLanes() &&
         report.failure.message().find("(simulated) left the group") != std::string::npos;
}

// Whether the error is about this fault, which has the ranks of the error's group.
bool isAbout(const Status& failure, const Schedule& drawn, const Fault& fault, bool hasRankLeft) {
  const std::string& text = failure.message();
  const bool isTimeout = failure.code() == StatusCode::kTimeout;
  // Before a link is made, nobody notices the silence of the peer.
  const bool isLate = drawn.network.lateness != Lateness::kNone;
  switch (fault.kind) {
    case FaultKind::kHostDies:
      if (isLate &&
          ((isTimeout && names(text, fault.rank)) || isAboutRankThatLeft(failure, drawn, fault, hasRankLeft))) {
        return true;
      }
      [[fallthrough]];
    case FaultKind::kKill:
      // A recv from any rank waits as long as one of the other ranks lives.
      return (failure.code() == StatusCode::kPeerFailed ||
              (isTimeout && text.find("from any rank") != std::string::npos)) &&
             text.find(fmt::format("rank {} (simulated) died", fault.rank)) != std::string::npos;
    case FaultKind::kCut:
      return ((names(text, fault.rank) || names(text, fault.peer)) &&
              ((isLate && isTimeout) || text.find("its network connection failed") != std::string::npos)) ||
             isAboutRankThatLeft(failure, drawn, fault, hasRankLeft);
    case FaultKind::kStop:
      // The chain of waiting ranks ends at a rank without a link (docs/errors.md): the other ranks' errors go on.
      if (isTimeout && isLate && text.find("could not be asked in time") != std::string::npos) {
        return true;
      }
      return (isTimeout && names(text, fault.rank)) || isAboutRankThatLeft(failure, drawn, fault, hasRankLeft);
    case FaultKind::kRevoke:
      return text.find(revocationBy(fault.rank)) != std::string::npos;
    case FaultKind::kHold:
      return false;
  }
  return false;
}

// The fault with the ranks of the group.
Fault inGroup(const Schedule& drawn, Fault fault, std::size_t group) {
  fault.rank = drawn.rankIn(group, fault.rank);
  fault.peer = drawn.rankIn(group, fault.peer);
  return fault;
}

bool isAboutAny(const Status& failure, const Schedule& drawn, std::size_t group, bool hasRankLeft) {
  return std::ranges::any_of(drawn.faults, [&](const Fault& fault) {
    return drawn.isLost(fault, group) && isAbout(failure, drawn, inGroup(drawn, fault, group), hasRankLeft);
  });
}

// The error is about a rank whose process stopped after the failure of another group, or whose only thread was held for
// long by another group. A process that leaves because of a death gives the death as the reason (isAboutOtherGroup),
// but not to a rank without a link, nor in a group that the process made after the death.
bool isAboutBusyRank(const Report& report, const Schedule& drawn, const std::vector<Report>& reports) {
  const std::string& text = report.failure.message();
  return std::ranges::any_of(reports, [&](const Report& other) {
    const Rank rank = drawn.rankIn(report.group, other.process);
    if (rank < 0 || other.group == report.group) {
      return false;
    }
    const bool hasFailed = !other.failure.isOk();
    const bool isHeld =
        !drawn.hasThreads && (other.longestCall > kLongWait || (hasFailed && other.failedAt > kLongWait) ||
                              (other.isDead && other.diedAt > kLongWait));
    const bool isOlder = std::ranges::any_of(reports, [&](const Report& leaving) {
      return leaving.group == report.group && leaving.process == other.process &&
             leaving.madeAt + kEndsOperation < other.failedAt;
    });
    const bool givesReason = isOlder && other.failure.code() == StatusCode::kPeerFailed;
    const auto left = fmt::format("rank {} (simulated) left{}", rank, givesReason ? " before it was joined" : "");
    return (isHeld && report.failure.code() == StatusCode::kTimeout && names(text, rank)) ||
           (hasFailed && drawn.afterFailure == AfterFailure::kStops && text.find(left) != std::string::npos);
  });
}

// The error gives the failure of another group as the reason, and that failure is about a loss or a busy rank.
bool isAboutOtherGroup(const Report& report, const Schedule& drawn, const std::vector<Report>& reports) {
  const auto begin = report.failure.message().find(kOtherGroup);
  if (begin == std::string::npos) {
    return false;
  }
  const Status reason(StatusCode::kPeerFailed, report.failure.message().substr(begin));
  for (std::size_t group = 0; group < drawn.groups.size(); ++group) {
    if (reason.message().find(fmt::format("group \"{}\"", drawn.labelOf(group))) != std::string::npos &&
        (isAboutAny(reason, drawn, group, true) ||
         isAboutBusyRank({.group = group, .failure = reason}, drawn, reports))) {
      return true;
    }
  }
  return false;
}

// A rank waited in vain for a rank that another group held: compile_op ended alone at the timeout, and the rank left.
bool isAboutRankThatWaited(const Report& report, const std::vector<Report>& reports) {
  return std::ranges::any_of(reports, [&](const Report& other) {
    return other.group == report.group && endsAlone(other.failure) &&
           report.failure.message().find(fmt::format("rank {} (simulated) left", other.rank)) != std::string::npos;
  });
}

// A rank of this group failed because of the loss, stayed as long as promised for the ranks without a link, and left.
// Another group held the only thread of a rank without a link for longer.
bool isAboutRankThatFailed(const Report& report, const Schedule& drawn, const std::vector<Report>& reports,
                           bool hasRankLeft) {
  return !drawn.hasThreads && std::ranges::any_of(reports, [&](const Report& other) {
    return other.group == report.group && other.failedAt + kStaysFor < report.failedAt &&
           isAboutAny(other.failure, drawn, other.group, hasRankLeft) &&
           report.failure.message().find(fmt::format("rank {} (simulated) left before it was joined", other.rank)) !=
               std::string::npos;
  });
}

// Whether the error is the reason of another rank's timeout, passed on.
bool isPassedOn(const Status& failure, const Status& timeout) {
  const std::size_t reason = timeout.message().find(" reached its timeout");
  return reason != std::string::npos && failure.message().find(" gave up: ") != std::string::npos &&
         failure.message().ends_with(timeout.message().substr(reason));
}

// The link to another rank stalled while this rank asked that rank for its state, shortly before the timeout. The error
// can name only the silent rank, whose own error is about the loss, unless the first rank's reason came before.
bool isAboutStalledRank(const Report& report, const Schedule& drawn, const std::vector<Report>& reports,
                        bool hasRankLeft) {
  return drawn.network.numStalls > 0 && report.failure.code() == StatusCode::kTimeout &&
         std::ranges::any_of(reports, [&](const Report& other) {
           return other.group == report.group &&
                  (isAboutAny(other.failure, drawn, other.group, hasRankLeft) ||
                   isPassedOn(other.failure, report.failure)) &&
                  report.failure.message().find(fmt::format("rank {} gave no answer", other.rank)) != std::string::npos;
         });
}

// A host was lost shortly before the timeout, when its silence did not count as a loss so far (docs/errors.md): the
// error names the silent rank. The other ranks get the first rank's reason.
bool isAboutHostLostJustBefore(const Report& report, const Schedule& drawn, const std::vector<Report>& reports) {
  Time first = kNever;
  for (const Report& other : reports) {
    if (other.group == report.group && other.failure.code() == StatusCode::kTimeout) {
      first = std::min(first, other.failedAt);
    }
  }
  const std::string& text = report.failure.message();
  return report.failure.code() == StatusCode::kTimeout && text.find("gave no answer") != std::string::npos &&
         std::ranges::any_of(reports, [&](const Report& other) {
           return other.group == report.group && other.isDead && other.diedAt <= first &&
                  first - other.diedAt < kSilenceCounts && names(text, other.rank) &&
                  std::ranges::any_of(drawn.faults, [&](const Fault& fault) {
                    return fault.kind == FaultKind::kHostDies && fault.rank == other.process;
                  });
         });
}

// All other ranks had been killed long before, and no rank could send anything any more. The silence of a dead host
// lasts longer, and nothing passes a cut link, not even a death. A rank that was stopped beyond the timeout sees the
// deaths and the timeout at once.
bool waitedForTheDead(const Report& report, const Schedule& drawn, const std::vector<Report>& reports) {
  const auto has = [&](FaultKind kind, Rank process) {
    return std::ranges::any_of(drawn.faults,
                               [&](const Fault& each) { return each.kind == kind && each.rank == process; });
  };
  const auto isCutFrom = [&](Rank process) {
    return std::ranges::any_of(drawn.faults, [&](const Fault& each) {
      return each.kind == FaultKind::kCut && ((each.rank == report.process && each.peer == process) ||
                                              (each.rank == process && each.peer == report.process));
    });
  };
  return report.failure.code() == StatusCode::kTimeout && !has(FaultKind::kStop, report.process) &&
         std::ranges::all_of(reports, [&](const Report& other) {
           return other.group != report.group || other.rank == report.rank ||
                  (other.isDead && other.diedAt + kLongWait < report.failedAt &&
                   !has(FaultKind::kHostDies, other.process) && !isCutFrom(other.process));
         });
}

std::string findWrongError(const Report& report, const Schedule& drawn, const std::vector<Report>& reports) {
  const bool hasRankLeft = std::ranges::any_of(
      reports, [&](const Report& other) { return other.group == report.group && endsAlone(other.failure); });
  const bool mayBeElsewhere = drawn.afterFailure == AfterFailure::kStops || !drawn.hasThreads;
  const bool hasFullLane = std::ranges::any_of(drawn.faults, [&](const Fault& fault) {
    return drawn.isLost(fault, report.group) &&
           isStoppedRankWithFullLane(report, drawn, inGroup(drawn, fault, report.group));
  });
  const bool isOnlyGroup = !drawn.hasSeveralGroups() && !drawn.makesAnew;
  if (isOnlyGroup && report.failure.message().find(kOtherGroup) != std::string::npos) {
    return "the error names another group, and there is none: " + report.failure.message();
  }
  if (waitedForTheDead(report, drawn, reports)) {
    return "all other ranks had died long before: " + report.failure.message();
  }
  if (hasFullLane || isAboutAny(report.failure, drawn, report.group, hasRankLeft) ||
      isAboutStalledRank(report, drawn, reports, hasRankLeft) || isAboutHostLostJustBefore(report, drawn, reports) ||
      (drawn.hasSeveralGroups() && mayBeElsewhere &&
       (isAboutOtherGroup(report, drawn, reports) || isAboutBusyRank(report, drawn, reports) ||
        isAboutRankThatWaited(report, reports) || isAboutRankThatFailed(report, drawn, reports, hasRankLeft)))) {
    return "";
  }
  return fmt::format(
      "operation {} failed, and {}: {}: {}", report.failedOperation,
      drawn.mayFail(report.group) ? "the error names none of the lost ranks and links" : "nothing was lost",
      statusCodeName(report.failure.code()), report.failure.message());
}

}  // namespace

bool endsAlone(const Status& failure) {
  return failure.code() == StatusCode::kTimeout && failure.message().find(" failed on rank ") == std::string::npos;
}

bool names(const std::string& text, Rank rank) {
  static const std::regex kNames("ranks? ([0-9]+(( to |, )[0-9]+)*)");
  static const std::regex kPart("([0-9]+)( to ([0-9]+))?");
  for (std::sregex_iterator it(text.begin(), text.end(), kNames); it != std::sregex_iterator(); ++it) {
    const std::string list = (*it)[1].str();
    for (std::sregex_iterator part(list.begin(), list.end(), kPart); part != std::sregex_iterator(); ++part) {
      const Rank first = std::stoi((*part)[1].str());
      const Rank last = (*part)[3].matched ? std::stoi((*part)[3].str()) : first;
      if (first <= rank && rank <= last) {
        return true;
      }
    }
  }
  return false;
}

std::vector<std::string> findFaults(const Schedule& drawn, const std::vector<Report>& reports) {
  std::vector<std::string> faults;
  for (const Report& report : reports) {
    const std::string label = drawn.labelOf(report.group);
    const std::string who = fmt::format("{}{}rank {}", label, label.empty() ? "" : " ", report.rank);
    for (const std::string& fault : report.faults) {
      faults.push_back(fmt::format("{}: {}", who, fault));
    }
    if (report.isDead) {
      continue;
    }
    if (!report.isOver) {
      faults.push_back(fmt::format("{} has not ended", who));
    } else if (!report.failure.isOk()) {
      if (const std::string wrong = findWrongError(report, drawn, reports); !wrong.empty()) {
        faults.push_back(fmt::format("{}: {}", who, wrong));
      }
    }
  }
  return faults;
}

}  // namespace shardwire::simulate
