// simulate() makes the world, the network and one process for each rank, schedules the faults, and runs events until
// every process ended or died. Then findFaults() compares the reports with the promises, and the threads of dead
// processes are ended, so a leak of the product shows as a living engine.
#include "tests/simulate/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <regex>

namespace shardwire::simulate {
namespace {

// No schedule lasts longer: some operations have a timeout of 50 s.
constexpr Time kLimit = 200 * kSecond;

void schedule(World& world, Network& network, std::vector<std::unique_ptr<RankProgram>>& programs,
              std::vector<std::unique_ptr<Process>>& processes, const Fault& fault) {
  const auto rank = static_cast<std::size_t>(fault.rank);
  const End end = fault.kind == FaultKind::kHostDies ? End::kHostDied : End::kDied;
  const auto at = [&](auto action) { world.at(world.now() + fault.after, std::move(action)); };
  switch (fault.kind) {
    case FaultKind::kKill:
    case FaultKind::kHostDies:
      return fault.numFrames > 0 ? network.endProcessAfter(fault.rank, fault.numFrames, end)
                                 : at([&network, end, rank = fault.rank] { network.endProcess(rank, end); });
    case FaultKind::kStop:
      return at([&world, process = processes[rank].get(), duration = fault.duration] {
        world.note(world.now(), process->rank(), "stops for {}", inMilliseconds(duration));
        process->stopUntil(world.now() + duration);
      });
    case FaultKind::kCut:
      return at([&network, a = fault.rank, b = fault.peer] { network.cut(a, b); });
    case FaultKind::kHold:
      return at([&world, &network, a = fault.rank, b = fault.peer, duration = fault.duration] {
        network.holdUntil(a, b, world.now() + duration);
      });
    case FaultKind::kRevoke:
      return at([process = processes[rank].get(), program = programs[rank].get()] {
        process->act([program] { program->revoke(); });
      });
  }
}

// Whether the text of an error names the rank: "rank 3", or "ranks 1, 3 to 5".
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

// compile_op ends alone at the timeout, and the group stays usable: the rank then leaves without a notice.
bool endsAlone(const Report& report) {
  return report.failure.code() == StatusCode::kTimeout &&
         report.failure.message().find(" failed on rank ") == std::string::npos;
}

// A rank left without a notice. Late links: the others stay for seconds for a rank without a link, and then leave.
bool isAboutRankThatLeft(const Status& failure, const Schedule& drawn, const Fault& fault, bool hasRankLeft) {
  const bool isLate = drawn.network.lateness != Lateness::kNone;
  const bool mayLeave = fault.kind == FaultKind::kStop ? hasRankLeft || isLate : hasRankLeft && isLate;
  return mayLeave && (failure.message().find("(simulated) left the group") != std::string::npos ||
                      failure.message().find("(simulated) left before it was joined") != std::string::npos);
}

// Whether the error is about this fault.
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
      return failure.code() == StatusCode::kPeerFailed &&
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

}  // namespace

Outcome simulate(const Schedule& drawn, bool isTraced) {
  World world(drawn.seed, isTraced);
  Network network(world, drawn.network, drawn.hosts);
  std::vector<std::unique_ptr<RankProgram>> programs;
  std::vector<std::unique_ptr<Process>> processes;
  std::vector<Process*> all;
  for (Rank rank = 0; rank < drawn.numRanks; ++rank) {
    programs.push_back(std::make_unique<RankProgram>(drawn, rank, network));
    processes.push_back(std::make_unique<Process>(world, rank, [program = programs.back().get()] { program->run(); }));
    programs.back()->setProcess(processes.back().get());
    processes.back()->setIsWaiting([program = programs.back().get()] { return program->isWaiting(); });
    all.push_back(processes.back().get());
  }
  network.setProcesses(all);
  for (const Fault& fault : drawn.faults) {
    schedule(world, network, programs, processes, fault);
  }
  const Time begin = world.now();
  const auto isOver = [](const auto& process) { return process->isOver() || process->isDead(); };
  world.run(begin + kLimit, [&] { return std::all_of(processes.begin(), processes.end(), isOver); });

  Outcome outcome{.simulated = world.now() - begin, .numEvents = world.numEvents(), .numFrames = network.numFrames()};
  std::vector<Report> reports;
  std::vector<bool> areDead;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    const Report& report = reports.emplace_back(programs[rank]->report());
    areDead.push_back(processes[rank]->isDead());
    outcome.numFailed += report.failure.isOk() ? 0 : 1;
    outcome.summary += fmt::format("rank {}: {}{} operations done{}\n", rank,
                                   areDead.back()   ? "dead, "
                                   : !report.isOver ? "NOT OVER, "
                                                    : "",
                                   report.numDone,
                                   report.failure.isOk()
                                       ? ""
                                       : fmt::format(", operation {} failed after {}: {}: {}", report.failedOperation,
                                                     inMilliseconds(world.elapsed(report.failedAt)),
                                                     statusCodeName(report.failure.code()), report.failure.message()));
  }
  const bool hasAllEnded = std::all_of(reports.begin(), reports.end(), [](const Report& one) { return one.isOver; });
  outcome.faults = findFaults(drawn, reports, areDead, hasAllEnded ? network.findLeftover() : "");
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    if (!processes[rank]->missedWake().empty()) {
      outcome.faults.push_back(processes[rank]->missedWake());
    }
    if (!processes[rank]->isOver()) {
      processes[rank]->die();
      processes[rank]->clear([&] { programs[rank]->reset(); });
    }
    if (!programs[rank]->isReleased()) {
      outcome.faults.push_back(fmt::format("the engine of rank {} is still there", rank));
    }
  }
  outcome.trace = world.trace();
  return outcome;
}

std::vector<std::string> findFaults(const Schedule& drawn, const std::vector<Report>& reports,
                                    const std::vector<bool>& areDead, const std::string& leftover) {
  std::vector<std::string> faults;
  const bool hasRankLeft = std::any_of(reports.begin(), reports.end(), endsAlone);
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const Report& report = reports[rank];
    for (const std::string& fault : report.faults) {
      faults.push_back(fmt::format("rank {}: {}", rank, fault));
    }
    if (areDead[rank]) {
      continue;
    }
    if (!report.isOver) {
      faults.push_back(fmt::format("rank {} has not ended", rank));
      continue;
    }
    if (report.failure.isOk()) {
      continue;
    }
    if (!drawn.mayFail()) {
      faults.push_back(fmt::format("rank {}: operation {} failed, and nothing was lost: {}", rank,
                                   report.failedOperation, report.failure.message()));
    } else if (std::none_of(drawn.faults.begin(), drawn.faults.end(),
                            [&](const Fault& fault) { return isAbout(report.failure, drawn, fault, hasRankLeft); })) {
      faults.push_back(fmt::format("rank {}: the error names none of the lost ranks and links: {}: {}", rank,
                                   statusCodeName(report.failure.code()), report.failure.message()));
    }
  }
  if (!drawn.mayFail() && !leftover.empty()) {
    faults.push_back(leftover);
  }
  return faults;
}

}  // namespace shardwire::simulate
