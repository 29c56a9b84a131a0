// simulateJoins() makes the processes and, for each group, the links; the ranks join by connectPeers(). The faults
// happen at their times. When every process has ended or died, findJoinFaults() compares the reports with the promises.
// The threads of dead processes are ended last: then no connection and no engine may be left.
#include "tests/simulate/join_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/base/log.h"
#include "backend/bootstrap/store_rounds.h"
#include "tests/simulate/join_promises.h"
#include "tests/simulate/join_wires.h"

namespace shardwire::simulate {
namespace {

// No schedule lasts longer.
constexpr Time kJoinLimit = 600 * kSecond;

struct JoinJob {
  JoinWorld shared;
  std::vector<std::unique_ptr<Process>> processes{};
  std::vector<std::unique_ptr<JoinProgram>> programs{};
  std::vector<JoinDeath> deaths{};
  std::vector<std::unique_ptr<ForeignProcess>> foreigners{};
};

std::vector<Partition> partitionsOf(const JoinSchedule& schedule, Time begin) {
  std::vector<Partition> all;
  for (const JoinFault& fault : schedule.faults) {
    if (fault.kind == JoinFaultKind::kPartition) {
      const Time from = begin + fault.after;
      all.push_back({.a = fault.process, .b = fault.other, .from = from, .until = from + fault.duration});
    }
  }
  return all;
}

void makeAll(JoinJob& job) {
  JoinWorld& shared = job.shared;
  const JoinSchedule& drawn = shared.schedule;
  internal::noteEndOfGroup();  // in every simulation, whatever ran before in this program
  shared.stores.resize(drawn.numStores());
  std::ranges::for_each(shared.stores, [&](StoreServer& each) { each.longestDelay = drawn.longestStoreDelay; });
  job.deaths.resize(static_cast<std::size_t>(drawn.numRanks));
  for (Rank number = 0; number < drawn.numRanks; ++number) {
    job.processes.push_back(std::make_unique<Process>(shared.world, number, shared.numGroups()));
  }
  for (std::size_t number = 0; number < shared.numGroups(); ++number) {
    const std::size_t group = number / static_cast<std::size_t>(drawn.numRounds);
    std::vector<std::int32_t> hosts;
    std::vector<Process*> members;
    for (const Rank member : drawn.groups[group]) {
      hosts.push_back(drawn.hosts[static_cast<std::size_t>(member)]);
      members.push_back(job.processes[static_cast<std::size_t>(member)].get());
    }
    shared.networks.push_back(
        std::make_unique<Network>(shared.world, drawn.network, std::move(hosts), number, drawn.labelOf(group)));
    shared.networks.back()->setProcesses(std::move(members));
  }
  if (drawn.isWired) {
    auto fabric = internal::Fabric::instance();
    SW_CHECK(fabric.isOk());
    shared.ends.sockets = std::make_unique<Sockets>(
        shared.world, std::move(*fabric),
        SocketOptions{.delay = [&first = *shared.networks.front()] { return first.drawWireDelay(); },
                      .seed = drawn.seed,
                      .piecesPercent = drawn.piecesPercent,
                      .shortPercent = drawn.shortPercent,
                      .partitions = partitionsOf(drawn, shared.world.now()),
                      .isBlocking = !drawn.operations.empty(),
                      .bufferBytes = drawn.bufferBytes,
                      .recordsPerKey = drawn.recordsPerKey});
  }
  for (const auto& process : job.processes) {
    job.programs.push_back(std::make_unique<JoinProgram>(shared, *process));
    job.programs.back()->begin();
  }
}

void endProcess(JoinJob& job, const JoinFault& fault) {
  JoinWorld& shared = job.shared;
  Process& process = *job.processes[static_cast<std::size_t>(fault.process)];
  if (process.isDead() || process.isOver()) {
    return;
  }
  const bool isHost = fault.kind == JoinFaultKind::kHostDies;
  const Time now = std::max(process.time(), shared.world.now());
  shared.world.note(now, fault.process, "{}", isHost ? "loses its host" : "is killed");
  JoinDeath& death = job.deaths[static_cast<std::size_t>(fault.process)];
  death.at = now;
  process.die();
  for (auto& [name, end] : shared.ends.byName) {
    if (end->process == &process) {
      end->isSilent = isHost;
      const auto hasName = [&](const auto& entry) { return entry.second.find(name) != std::string::npos; };
      death.isPublished |= std::ranges::any_of(
          shared.stores, [&](const StoreServer& each) { return std::ranges::any_of(each.entries, hasName); });
    }
  }
  if (shared.ends.sockets != nullptr) {
    shared.ends.sockets->end(process, isHost);
  }
  for (std::size_t number = 0; number < shared.numGroups(); ++number) {
    const std::size_t group = number / static_cast<std::size_t>(shared.schedule.numRounds);
    shared.networks[number]->end(shared.schedule.rankIn(group, fault.process), isHost ? End::kHostDied : End::kDied);
  }
}

void stop(JoinJob& job, const JoinFault& fault) {
  Process& process = *job.processes[static_cast<std::size_t>(fault.process)];
  const Time now = std::max(process.time(), job.shared.world.now());
  job.shared.world.note(now, fault.process, "stops for {}", inMilliseconds(fault.duration));
  process.stopUntil(now + fault.duration);
}

void scheduleFault(JoinJob& job, const JoinFault& fault) {
  World& world = job.shared.world;
  const auto plan = [&](std::function<void()> action) {
    if (fault.numCalls > 0) {
      const Process& process = *job.processes[static_cast<std::size_t>(fault.process)];
      job.shared.ends.sockets->atCall(process, fault.numCalls, std::move(action));
    } else {
      world.at(world.now() + fault.after, std::move(action));
    }
  };
  switch (fault.kind) {
    case JoinFaultKind::kKill:
    case JoinFaultKind::kHostDies:
      return plan([&job, fault] { endProcess(job, fault); });
    case JoinFaultKind::kStop:
      return plan([&job, fault] { stop(job, fault); });
    case JoinFaultKind::kStoreSilent:
      job.shared.storeOf(fault.group).numAnswered[fault.process] = fault.numRequests;
      return;
    case JoinFaultKind::kStoreEnds:
      return plan([&job, fault] {
        job.shared.world.note(job.shared.world.now(), -1, "the store ends");
        job.shared.storeOf(fault.group).hasEnded = true;
      });
    default:
      return;  // the program of the process follows the fault
  }
}

// The foreign process has read the store, and so knows an endpoint of the process and the group's token. It does not
// know the job's token.
void dialAsForeigner(JoinJob& job, const JoinForeigner& foreigner) {
  JoinEnds& ends = job.shared.ends;
  const Process* const process = job.processes[static_cast<std::size_t>(foreigner.process)].get();
  const auto hasToken = [&](const auto& each) { return each.second->process == process && each.second->isOpen; };
  const auto end = std::ranges::find_if(ends.byName, hasToken);
  if (end == ends.byName.end()) {
    return;
  }
  const auto first = std::ranges::find_if(ends.byName, [&](const auto& each) {
    return each.second->network == end->second->network && each.second->rank == 0;
  });
  const Rank to = end->second->rank;
  const internal::RandomId token = first == ends.byName.end() ? internal::RandomId{} : first->second->token;
  const internal::LinkHello hello{to == 0 ? 1 : 0, to, static_cast<std::uint32_t>(job.shared.schedule.numRanks),
                                  static_cast<std::uint8_t>(internal::TransportKind::kTcp),
                                  internal::makeEndpointId(end->second->token)};
  job.shared.world.note(job.shared.world.now(), foreigner.process, "is dialed by a foreign process");
  job.foreigners.push_back(std::make_unique<ForeignProcess>(job.shared.world, foreigner.process,
                                                            internal::makeLinkKey(token, "another token"), hello));
}

// Living processes of two jobs that have lost the group of both jobs alone.
int numBeside(const JoinSchedule& drawn, const std::vector<JoinReport>& reports) {
  const auto isWell = [](const JoinReport& each) { return each.isOver && each.joined.isOk() && each.worked.isOk(); };
  return static_cast<int>(std::ranges::count_if(reports, [&](const JoinReport& each) {
    return drawn.isCommon(each.group) && each.isOver && !isWell(each) &&
           std::ranges::any_of(reports, [&](const JoinReport& own) {
             return own.process == each.process && own.group != each.group && isWell(own);
           });
  }));
}

std::string summaryOf(const JoinWorld& shared, const JoinReport& report, bool isDead) {
  const auto text = [](const char* what, const Status& status) {
    return status.isOk() ? std::string()
                         : fmt::format(", {}: {}: {}", what, statusCodeName(status.code()), status.message());
  };
  return fmt::format("process {}, {} round {} rank {}: {}came {}, made {}{}{}\n", report.process,
                     shared.schedule.labelOf(report.group), report.round, report.rank, isDead ? "dead, " : "",
                     inMilliseconds(shared.world.elapsed(report.begin)),
                     report.made == kNever ? "never" : inMilliseconds(shared.world.elapsed(report.made)),
                     text("not joined", report.joined), text("failed", report.worked));
}

// The listeners warn of foreign processes, which are part of the simulation here.
class QuietLog {
 public:
  QuietLog() { internal::setLogLevel(before_ == internal::LogLevel::kWarn ? internal::LogLevel::kError : before_); }
  ~QuietLog() { internal::setLogLevel(before_); }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

 private:
  const internal::LogLevel before_ = internal::logLevel();
};

// Ends the threads of dead processes. Afterwards nothing may be left.
void clear(JoinJob& job, std::vector<std::string>* faults) {
  for (std::size_t number = 0; number < job.processes.size(); ++number) {
    Process& process = *job.processes[number];
    if (!process.isOver()) {
      process.die();
      process.clear([&] { job.programs[number]->reset(); });
    }
    if (job.programs[number]->hasEngine()) {
      faults->push_back(fmt::format("an engine of process {} is still there", number));
    }
  }
  job.foreigners.clear();
  if (job.shared.ends.sockets != nullptr && job.shared.ends.sockets->numOpen() > 0) {
    faults->push_back(fmt::format("{} sockets are still open", job.shared.ends.sockets->numOpen()));
  }
  for (const auto& network : job.shared.networks) {
    if (network->hasConnections()) {
      faults->push_back("a connection is still there");
    }
  }
}

}  // namespace

Outcome simulateJoins(const JoinSchedule& schedule, bool isTraced) {
  const QuietLog quiet;
  JoinJob job{{.schedule = schedule, .world = World(schedule.seed, isTraced)}};
  World& world = job.shared.world;
  world.setRowName("process");
  makeAll(job);
  for (const JoinFault& fault : schedule.faults) {
    scheduleFault(job, fault);
  }
  for (const JoinForeigner& each : schedule.foreigners) {
    world.at(world.now() + each.after, [&job, each] { dialAsForeigner(job, each); });
  }
  const Time begin = world.now();
  const auto isOver = [](const auto& process) { return process->isOver() || process->isDead(); };
  world.run(begin + kJoinLimit, [&] { return std::ranges::all_of(job.processes, isOver); });

  Outcome outcome{.simulated = world.now() - begin, .numEvents = world.numEvents()};
  std::vector<JoinReport> reports;
  for (const auto& program : job.programs) {
    std::ranges::transform(program->reports(), std::back_inserter(reports), [](const auto& each) { return *each; });
  }
  outcome.numBeside = numBeside(schedule, reports);
  for (const JoinReport& report : reports) {
    outcome.numFetched += report.numFetched;
    outcome.numFailed += report.joined.isOk() && report.worked.isOk() ? 0 : 1;
    outcome.summary += summaryOf(job.shared, report, job.deaths[static_cast<std::size_t>(report.process)].at != kNever);
  }
  for (const auto& network : job.shared.networks) {
    outcome.numFrames += network->numFrames();
  }
  outcome.faults = findJoinFaults(job.shared, reports, job.deaths);
  outcome.faults.insert(outcome.faults.end(), job.shared.ends.faults.begin(), job.shared.ends.faults.end());
  if (std::ranges::any_of(job.foreigners, [](const auto& each) { return each->isAccepted(); })) {
    outcome.faults.push_back("a rank accepted a process that does not know the job's token");
  }
  clear(job, &outcome.faults);
  outcome.trace = world.trace();
  return outcome;
}

}  // namespace shardwire::simulate
