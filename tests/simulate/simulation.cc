// simulate() makes the world, the links of each group and the processes (Job), schedules the faults, and runs events
// until every process ended or died. Then findFaults() compares the reports with the promises, and the threads of dead
// processes are ended, so a leak of the product shows as a living engine.
#include "tests/simulate/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/simulate/faults.h"
#include "tests/simulate/promises.h"

namespace shardwire::simulate {
namespace {

// No schedule lasts longer: some operations have a timeout of 50 s.
constexpr Time kLimit = 200 * kSecond;

std::string summaryOf(const Schedule& drawn, const Report& report) {
  const std::string label = drawn.labelOf(report.group);
  return fmt::format("{}rank {}: {}{} operations done{}\n",
                     label.empty() ? "" : fmt::format("process {}, {} ", report.process, label), report.rank,
                     report.isDead    ? "dead, "
                     : !report.isOver ? "NOT OVER, "
                                      : "",
                     report.numDone,
                     report.failure.isOk()
                         ? ""
                         : fmt::format(", operation {} failed after {}: {}: {}", report.failedOperation,
                                       inMilliseconds(report.failedAt), statusCodeName(report.failure.code()),
                                       report.failure.message()));
}

// The ranks' reports by group, then by rank.
std::vector<Report> reportsOf(const Job& job) {
  std::vector<Report> reports;
  for (std::size_t group = 0; group < job.networks.size(); ++group) {
    for (const Rank member : job.schedule.groups[group]) {
      const auto number = static_cast<std::size_t>(member);
      reports.push_back(job.programs[number]->rankIn(group)->report());
      reports.back().isDead = job.processes[number]->isDead();
      reports.back().diedAt = job.world.elapsed(job.processes[number]->diedAt());
    }
  }
  return reports;
}

int countBeside(const std::vector<Report>& reports, int numProcesses) {
  int count = 0;
  for (Rank process = 0; process < numProcesses; ++process) {
    const auto has = [&](bool isFailed) {
      return std::ranges::any_of(reports, [&](const Report& one) {
        return one.process == process && !one.isDead &&
               (isFailed ? !one.failure.isOk() : one.failure.isOk() && one.numDone > 0);
      });
    };
    count += has(true) && has(false) ? 1 : 0;
  }
  return count;
}

int countMadeAnew(const Schedule& drawn, const std::vector<Report>& reports) {
  int count = 0;
  for (std::size_t group = 1; drawn.makesAnew && group < drawn.groups.size(); ++group) {
    const bool isWhole = std::ranges::all_of(reports, [&](const Report& one) {
      return one.group != group || (one.isOver && one.failure.isOk() && one.numDone > 0);
    });
    count += isWhole ? 1 : 0;
  }
  return count;
}

// Finds remains in the links of the groups without losses. A process that stops leaves operations of others uncalled.
void findLeftovers(const Job& job, const std::vector<Report>& reports, std::vector<std::string>* faults) {
  for (std::size_t group = 0; group < job.networks.size(); ++group) {
    const bool isWhole = !job.schedule.mayFail(group) && std::ranges::all_of(reports, [&](const Report& one) {
      const bool matters = one.group == group || job.schedule.afterFailure == AfterFailure::kStops;
      return !matters || (one.isOver && one.failure.isOk());
    });
    if (const std::string left = isWhole ? job.networks[group]->findLeftover() : ""; !left.empty()) {
      faults->push_back(left);
    }
  }
}

// Ends the threads of dead processes. Afterwards no engine may be left.
void clear(Job& job, std::vector<std::string>* faults) {
  for (std::size_t number = 0; number < job.processes.size(); ++number) {
    Process& process = *job.processes[number];
    Program& program = *job.programs[number];
    if (!process.missedWake().empty()) {
      faults->push_back(process.missedWake());
    }
    if (!process.isOver()) {
      process.die();
      process.clear([&] { program.reset(); });
    }
    for (const auto& rank : program.ranks()) {
      if (!rank->isReleased()) {
        faults->push_back(fmt::format("the engine of rank {} is still there", rank->report().rank));
      }
    }
  }
}

}  // namespace

Outcome simulate(Schedule schedule, bool isTraced) {
  Job job(std::move(schedule), isTraced);
  const Schedule& drawn = job.schedule;
  for (const Fault& fault : drawn.faults) {
    scheduleFault(job, fault);
  }
  const Time begin = job.world.now();
  const auto isOver = [](const auto& process) { return process->isOver() || process->isDead(); };
  job.world.run(begin + kLimit, [&] { return std::ranges::all_of(job.processes, isOver); });

  Outcome outcome{.simulated = job.world.now() - begin, .numEvents = job.world.numEvents()};
  const std::vector<Report> reports = reportsOf(job);
  for (const Report& report : reports) {
    outcome.numFailed += report.failure.isOk() ? 0 : 1;
    outcome.summary += summaryOf(drawn, report);
  }
  for (const auto& network : job.networks) {
    outcome.numFrames += network->numFrames();
  }
  outcome.numMadeAnew = countMadeAnew(drawn, reports);
  outcome.numBeside = countBeside(reports, drawn.numRanks);
  outcome.faults = findFaults(drawn, reports);
  findLeftovers(job, reports, &outcome.faults);
  clear(job, &outcome.faults);
  outcome.trace = job.world.trace();
  if (const Recording* const recording = job.world.recording()) {
    outcome.recording = *recording;
  }
  return outcome;
}

}  // namespace shardwire::simulate
