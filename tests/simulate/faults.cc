#include "tests/simulate/faults.h"

#include <algorithm>
#include <utility>

namespace shardwire::simulate {
namespace {

void mark(Job& job, const char* kind, Time begin, Time end, const Fault& fault) {
  if (Recording* const recording = job.world.recording()) {
    recording->marks.push_back({kind, job.world.elapsed(begin), job.world.elapsed(end), fault.rank, fault.peer,
                                describe(fault, job.schedule)});
  }
}

void endProcess(Job& job, const Fault& fault) {
  const Rank number = fault.rank;
  const End end = fault.kind == FaultKind::kHostDies ? End::kHostDied : End::kDied;
  Process& process = *job.processes[static_cast<std::size_t>(number)];
  if (process.isDead() || process.isOver()) {
    return;
  }
  const Time now = std::max(process.time(), job.world.now());
  mark(job, "dead", now, kNever, fault);
  job.world.note(now, number, "{}", end == End::kHostDied ? "loses its host" : "is killed");
  process.die();
  for (std::size_t group = 0; group < job.networks.size(); ++group) {
    job.networks[group]->end(job.schedule.rankIn(group, number), end);
  }
}

void cut(Job& job, const Fault& fault) {
  mark(job, "cut", job.world.now(), kNever, fault);
  job.world.note(job.world.now(), -1, "the link between {} {} and {} is cut", job.schedule.rowsName(), fault.rank,
                 fault.peer);
  for (std::size_t group = 0; group < job.networks.size(); ++group) {
    job.networks[group]->cut(job.schedule.rankIn(group, fault.rank), job.schedule.rankIn(group, fault.peer));
  }
}

void hold(Job& job, const Fault& fault) {
  const Time until = job.world.now() + fault.duration;
  mark(job, "hold", job.world.now(), until, fault);
  job.world.note(job.world.now(), -1, "nothing passes between {} {} and {} before {}", job.schedule.rowsName(),
                 fault.rank, fault.peer, inMilliseconds(job.world.elapsed(until)));
  for (std::size_t group = 0; group < job.networks.size(); ++group) {
    job.networks[group]->holdUntil(job.schedule.rankIn(group, fault.rank), job.schedule.rankIn(group, fault.peer),
                                   until);
  }
}

void stop(Job& job, const Fault& fault) {
  mark(job, "stop", job.world.now(), job.world.now() + fault.duration, fault);
  job.world.note(job.world.now(), fault.rank, "stops for {}", inMilliseconds(fault.duration));
  job.processes[static_cast<std::size_t>(fault.rank)]->stopUntil(job.world.now() + fault.duration);
}

void revoke(Job& job, const Fault& fault) {
  const auto number = static_cast<std::size_t>(fault.rank);
  if (RankProgram* const rank = job.programs[number]->rankIn(fault.group)) {
    mark(job, "revoke", job.world.now(), job.world.now(), fault);
    job.processes[number]->act([rank] { rank->revoke(); });
  }
}

}  // namespace

Job::Job(Schedule drawn, bool isTraced) : schedule(std::move(drawn)), world(schedule.seed, isTraced) {
  world.setRowName(schedule.rowName());
  const std::size_t mostGroups = schedule.groups.size() + (schedule.makesAnew ? kMostMadeAnew : 0);
  for (Rank number = 0; number < schedule.numRanks; ++number) {
    processes.push_back(std::make_unique<Process>(world, number, mostGroups));
    programs.push_back(std::make_unique<Program>(schedule, *processes.back(), survivors));
  }
  for (std::size_t group = 0; group < schedule.groups.size(); ++group) {
    addNetwork(group);
    for (const Rank member : schedule.groups[group]) {
      programs[static_cast<std::size_t>(member)]->addRank(group, *networks[group]);
    }
  }
  for (const auto& program : programs) {
    program->begin();
  }
}

void Job::addNetwork(std::size_t group) {
  std::vector<std::int32_t> hosts;
  std::vector<Process*> members;
  for (const Rank member : schedule.groups[group]) {
    hosts.push_back(schedule.hosts[static_cast<std::size_t>(member)]);
    members.push_back(processes[static_cast<std::size_t>(member)].get());
  }
  networks.push_back(
      std::make_unique<Network>(world, schedule.network, std::move(hosts), group, schedule.labelOf(group)));
  networks.back()->setProcesses(std::move(members));
}

void scheduleFault(Job& job, const Fault& fault) {
  const auto at = [&](auto action) {
    job.world.at(job.world.now() + fault.after, [&job, fault, action] { action(job, fault); });
  };
  switch (fault.kind) {
    case FaultKind::kKill:
    case FaultKind::kHostDies:
      if (fault.numFrames > 0) {
        Process& process = *job.processes[static_cast<std::size_t>(fault.rank)];
        return process.endAfterFrames(fault.numFrames, [&job, fault] { endProcess(job, fault); });
      }
      return at(endProcess);
    case FaultKind::kStop:
      return at(stop);
    case FaultKind::kCut:
      return at(cut);
    case FaultKind::kHold:
      return at(hold);
    case FaultKind::kRevoke:
      return at(revoke);
  }
}

}  // namespace shardwire::simulate
