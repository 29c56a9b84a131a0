// findJoinFaults() goes through the reports of the living ranks. A rank with a failure in one group may be missing in
// another group, or in the next round, and counts as lost there (lostIn). A joined rank may see the end of a rank
// without success in joining, and then the error of the operation names this rank. After the end of the store ranks
// cannot agree on one reason, and take each other for dead.
#include "tests/simulate/join_promises.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "backend/bootstrap/roster.h"
#include "tests/simulate/promises.h"

namespace shardwire::simulate {
namespace {

// From a visible loss to the end of the making: a look, the reason of a peer, and the answers of the store.
constexpr Time kSoon = 3 * kSecond;

Time mostStoreTime(const JoinSchedule& drawn) {
  return (4 * drawn.numRanks + 30) * drawn.longestStoreDelay;
}

// All short stops, and all long delays of links.
Time harmlessTime(const JoinSchedule& drawn, std::size_t group) {
  const int numPairs = drawn.numRanks * (drawn.numRanks - 1) / 2;
  Time time = mostStoreTime(drawn) + numPairs * drawn.longestHandshake +
              (drawn.network.spikePercent > 0 ? 20 * drawn.network.longestSpike : 0);
  for (const JoinFault& fault : drawn.faults) {
    const bool isElsewhere = drawn.rankIn(group, fault.process) < 0 ||
                             (fault.kind == JoinFaultKind::kPartition && drawn.rankIn(group, fault.other) < 0);
    const bool isDelay = (fault.kind == JoinFaultKind::kStop || fault.kind == JoinFaultKind::kPartition) &&
                         !(drawn.hasTwoJobs() && isElsewhere);
    time += isDelay && !drawn.isLost(fault, group) ? fault.duration : 0;
  }
  return time;
}

bool hasStoreEnded(const JoinSchedule& drawn, std::size_t group) {
  return std::ranges::any_of(drawn.faults, [&](const auto& each) {
    return each.kind == JoinFaultKind::kStoreEnds && drawn.isLost(each, group);
  });
}

// Ranks missing in the group of this report, perhaps.
std::set<Rank> lostIn(const JoinSchedule& drawn, const JoinReport& of, const std::vector<JoinReport>& reports) {
  std::set<Rank> lost;
  for (const JoinFault& fault : drawn.faults) {
    if (fault.kind != JoinFaultKind::kStoreEnds && drawn.isLost(fault, of.group)) {
      lost.insert(drawn.rankIn(of.group, fault.process));
      lost.insert(fault.kind == JoinFaultKind::kPartition ? drawn.rankIn(of.group, fault.other) : -1);
    }
    if (fault.kind == JoinFaultKind::kWrongSize) {
      lost.insert(static_cast<Rank>(drawn.groups[of.group].size()));  // the rank that is too many
    }
  }
  for (const JoinReport& each : reports) {
    const bool isSame = each.group == of.group;
    const bool isBefore = drawn.hasTwoJobs() ? isSame && each.round < of.round
                                             : (!isSame || each.round < of.round) && drawn.order != JoinOrder::kAtOnce;
    if (const Rank rank = drawn.rankIn(of.group, each.process);
        rank >= 0 && isBefore && !(each.joined.isOk() && each.worked.isOk())) {
      lost.insert(rank);
    }
  }
  return lost;
}

bool namesAny(const std::string& text, const std::set<Rank>& ranks) {
  return std::ranges::any_of(ranks, [&](Rank rank) { return names(text, rank); });
}

// The failure of another group of a process is the reason: the text names the group, and a rank lost there.
bool namesLostElsewhere(const std::string& text, std::size_t group, const JoinSchedule& drawn) {
  for (std::size_t other = 0; other < drawn.groups.size(); ++other) {
    std::set<Rank> lost;
    for (const JoinFault& fault : drawn.faults) {
      lost.insert(drawn.isLost(fault, other) ? drawn.rankIn(other, fault.process) : -1);
    }
    const bool isNamed = text.find(fmt::format("group \"{}\"", drawn.labelOf(other))) != std::string::npos;
    if (other != group && isNamed && namesAny(text, lost)) {
      return true;
    }
  }
  return false;
}

// A rank that is idle for longer than the grace time, while another group of its process fails, counts as missing.
bool mayStayAway(const JoinReport& report, const JoinSchedule& drawn) {
  return drawn.longestIdle >= std::chrono::nanoseconds(drawn.options.grace).count() &&
         namesLostElsewhere(report.worked.message(), report.group, drawn);
}

std::string findWrongJoin(const JoinReport& report, const JoinSchedule& drawn, const std::vector<JoinReport>& reports) {
  const std::string& text = report.joined.message();
  const Time waited = report.made - report.begin;
  Time stops = 0;
  for (const JoinFault& fault : drawn.faults) {
    stops += fault.kind == JoinFaultKind::kStop && fault.process == report.process ? fault.duration : 0;
  }
  if (waited > drawn.timeout + kSoon + harmlessTime(drawn, report.group) + stops) {
    return fmt::format("the error came after {}", inMilliseconds(waited));
  }
  const bool isAboutStore = text.find("simulated store") != std::string::npos;
  const bool isStoreReason = text.find("made: the simulated store") != std::string::npos;
  if (isStoreReason && !hasStoreEnded(drawn, report.group) && report.joined.code() == StatusCode::kSystem) {
    return "a silent store is no timeout";
  }
  // A rank that was stopped beyond its timeout finds the other ranks gone.
  if (stops > drawn.timeout || hasStoreEnded(drawn, report.group) || isAboutStore ||
      namesAny(text, lostIn(drawn, report, reports))) {
    return "";
  }
  return "the error names no lost rank";
}

std::string findWrongWork(const JoinReport& report, const JoinSchedule& drawn, const std::vector<JoinReport>& reports) {
  std::set<Rank> lost = lostIn(drawn, report, reports);
  for (const JoinReport& each : reports) {
    if (each.group == report.group && each.round == report.round && (!each.joined.isOk() || endsAlone(each.worked))) {
      lost.insert(each.rank);
    }
  }
  const std::string& text = report.worked.message();
  const auto showsAtOnce = [&](const JoinFault& fault) {
    return !drawn.isLost(fault, report.group) || fault.kind == JoinFaultKind::kKill ||
           fault.kind == JoinFaultKind::kCannotJoin || fault.kind == JoinFaultKind::kOtherRing ||
           fault.kind == JoinFaultKind::kOtherTls;
  };
  if (report.worked.code() == StatusCode::kTimeout && std::ranges::all_of(drawn.faults, showsAtOnce)) {
    return "a rank waited until its timeout for a rank that was killed or cannot be joined";
  }
  const auto isKill = [&](const JoinFault& fault) {
    return !drawn.isLost(fault, report.group) || fault.kind == JoinFaultKind::kKill;
  };
  if (report.worked.code() != StatusCode::kPeerFailed && std::ranges::all_of(drawn.faults, isKill)) {
    return "the death of a rank is no failure of this rank";
  }
  const bool namesOptions =
      (drawn.has(JoinFaultKind::kOtherRing) && text.find("SHARDWIRE_RING_BYTES") != std::string::npos) ||
      (drawn.has(JoinFaultKind::kOtherTls) && text.find("SHARDWIRE_TCP_TLS") != std::string::npos);
  return namesOptions || namesAny(text, lost) || namesLostElsewhere(text, report.group, drawn)
             ? ""
             : "the error of an operation names no lost rank";
}

// Whether the rank can know that the process is dead: from the published address, or from the outer group.
bool canKnow(const JoinReport& report, const JoinSchedule& drawn, const std::vector<JoinReport>& reports, Rank process,
             const JoinDeath& death) {
  const bool hasCome = std::ranges::any_of(reports, [&](const JoinReport& each) {
    return each.process == process && each.group == report.group && each.begin != kNever;
  });
  if (drawn.order == JoinOrder::kNested && report.group == 1) {
    return !hasCome && !drawn.isLazy;
  }
  const auto hostOf = [&](Rank each) { return drawn.hosts[static_cast<std::size_t>(each)]; };
  const bool isReadByFirst = drawn.numRanks > internal::kFewAddresses && process != 0;
  const Rank reader = isReadByFirst ? 0 : report.process;
  return drawn.groups.size() == 1 && report.round == 0 && death.isPublished && hostOf(process) == hostOf(reader) &&
         hostOf(process) == hostOf(report.process);
}

// A rank dies: the others end soon. Of many ranks, rank 0 alone looks at all addresses.
std::string findLateEnd(const JoinReport& report, const JoinSchedule& drawn, const std::vector<JoinReport>& reports,
                        const std::vector<JoinDeath>& deaths) {
  const auto isLost = [&](const JoinFault& fault) { return drawn.isLost(fault, report.group); };
  const auto fault = std::ranges::find_if(drawn.faults, isLost);
  if (std::ranges::count_if(drawn.faults, isLost) != 1 || fault->kind != JoinFaultKind::kKill ||
      !canKnow(report, drawn, reports, fault->process, deaths[static_cast<std::size_t>(fault->process)])) {
    return "";
  }
  Time begin = std::max(deaths[static_cast<std::size_t>(fault->process)].at, report.begin);
  for (const JoinReport& each : reports) {
    begin = each.group == report.group && each.rank == 0 ? std::max(begin, each.begin) : begin;
  }
  const Time late = report.made - begin - harmlessTime(drawn, report.group);
  return late > kSoon ? fmt::format("the error came {} after the death", inMilliseconds(late)) : "";
}

// The operations of a group that loses nothing.
std::string findLateWork(const JoinReport& report, const JoinSchedule& drawn, const std::vector<JoinReport>& reports) {
  if (drawn.isCommon(report.group) && !drawn.faults.empty()) {
    return "";  // the publishers are late with their steps
  }
  Time last = report.made;
  for (const JoinReport& each : reports) {
    const bool isSame = each.group == report.group && each.round == report.round;
    last = isSame || drawn.isCommon(report.group) ? std::max(last, each.made) : last;
  }
  const auto numDrawn = drawn.operations.empty() ? 0 : std::ssize(drawn.operations[report.group]);
  const int numFurther = drawn.numSteps + drawn.numFetches;
  const Time late = report.ended - last - (2 + numFurther) * drawn.longestIdle - harmlessTime(drawn, report.group);
  return late > (1 + numDrawn + numFurther) * kSecond
             ? fmt::format("the operations ended {} late", inMilliseconds(late))
             : "";
}

// All operations of a group end with one that needs each rank.
std::string findMissing(const JoinReport& report, const JoinSchedule& drawn, const std::vector<JoinReport>& reports) {
  const auto hasCalled = [&](const JoinReport& each) {
    return each.group == report.group && each.round == report.round && each.hasCalledAll;
  };
  const auto numMissing = std::ssize(drawn.groups[report.group]) - std::ranges::count_if(reports, hasCalled);
  return numMissing == 0 ? "" : fmt::format("succeeded without {} ranks of its group", numMissing);
}

std::string findWrong(const JoinReport& report, const JoinSchedule& drawn, const std::vector<JoinReport>& reports,
                      const std::vector<JoinDeath>& deaths) {
  if (!report.wrong.empty()) {
    return report.wrong;
  }
  if (!report.isOver) {
    return "has not ended";
  }
  // A member may have lost a rank of the outer group alone, and does not come to the inner group.
  const bool mayFail = drawn.mayFail(report.group) || !lostIn(drawn, report, reports).empty();
  if (report.joined.isOk() && report.worked.isOk()) {
    if (const std::string missing = findMissing(report, drawn, reports); !missing.empty()) {
      return missing;
    }
    Time last = report.begin;
    for (const JoinReport& each : reports) {
      last = each.group == report.group && each.round == report.round ? std::max(last, each.begin) : last;
    }
    const Time late = report.made - last - harmlessTime(drawn, report.group);
    if (!mayFail && late > kSecond) {
      return fmt::format("joined {} after the last rank came", inMilliseconds(late));
    }
    return mayFail ? "" : findLateWork(report, drawn, reports);
  }
  const Status& why = report.joined.isOk() ? report.worked : report.joined;
  std::string wrong = !mayFail && !mayStayAway(report, drawn) ? "nothing was lost"
                      : report.joined.isOk()                  ? findWrongWork(report, drawn, reports)
                                                              : findWrongJoin(report, drawn, reports);
  if (wrong.empty() && !report.joined.isOk()) {
    wrong = findLateEnd(report, drawn, reports, deaths);
  }
  return wrong.empty() ? "" : fmt::format("{}: {}: {}", wrong, statusCodeName(why.code()), why.message());
}

}  // namespace

std::vector<std::string> findJoinFaults(const JoinWorld& shared, const std::vector<JoinReport>& reports,
                                        const std::vector<JoinDeath>& deaths) {
  std::vector<std::string> faults;
  for (const JoinReport& report : reports) {
    const bool isDead = deaths[static_cast<std::size_t>(report.process)].at != kNever;
    if (const std::string wrong = isDead ? "" : findWrong(report, shared.schedule, reports, deaths); !wrong.empty()) {
      faults.push_back(fmt::format("{} round {} rank {}: {}", shared.schedule.labelOf(report.group), report.round,
                                   report.rank, wrong));
    }
  }
  return faults;
}

}  // namespace shardwire::simulate
