// The wires of a simulation of joins. drawTransport() draws from a generator of its own, so all other contents of a
// seed stay as they are: pieces of messages, sockets that take a part, encryption, checksums, and whether all ranks
// dial at once. Then come the faults at the steps of a set-up: a process dies or stops in a system call on a wire, two
// processes are cut off from each other, or options differ.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/simulate/join_schedule.h"

namespace shardwire::simulate {
namespace {

constexpr std::uint64_t kTransportSalt = 0x74637031;
// The system calls of a process until its links are made and the first operation is over, roughly.
constexpr int kMostCalls = 60;

bool isTimed(const JoinFault& fault) {
  return fault.kind == JoinFaultKind::kKill || fault.kind == JoinFaultKind::kHostDies ||
         fault.kind == JoinFaultKind::kStop;
}

Rank drawProcess(Random& random, const JoinSchedule& schedule) {
  return static_cast<Rank>(random.between(0, schedule.numRanks - 1));
}

void drawSteps(Random& random, JoinSchedule& schedule) {
  if (std::ranges::none_of(schedule.faults, isTimed) && random.chance(40)) {
    constexpr std::array kKinds = {JoinFaultKind::kKill, JoinFaultKind::kHostDies, JoinFaultKind::kStop,
                                   JoinFaultKind::kStop};
    JoinFault fault{.kind = kKinds[static_cast<std::size_t>(random.between(0, std::ssize(kKinds) - 1))],
                    .process = drawProcess(random, schedule)};
    fault.duration = random.chance(50) ? random.between(2, 3) * schedule.timeout
                                       : random.between(kMillisecond, schedule.timeout / 8);
    schedule.faults.push_back(fault);
  }
  for (JoinFault& fault : schedule.faults) {
    if (isTimed(fault) && random.chance(60)) {
      fault.numCalls = static_cast<int>(random.between(1, random.chance(50) ? kMostCalls / 3 : kMostCalls));
    }
  }
}

void drawPartition(Random& random, JoinSchedule& schedule) {
  JoinFault fault{.kind = JoinFaultKind::kPartition, .process = drawProcess(random, schedule)};
  fault.other = drawProcess(random, schedule);
  const Time comes = *std::ranges::max_element(schedule.comesAt);
  fault.after = comes + random.between(0, random.chance(50) ? 10 * kMillisecond : 2 * kSecond);
  fault.duration = random.chance(60)   ? random.between(kMillisecond, kHarmlessPartition)
                   : random.chance(50) ? random.between(3 * kSecond, 20 * kSecond)
                                       : kForEver;
  if (fault.other != fault.process) {
    schedule.faults.push_back(fault);
  }
}

std::string whenOf(const JoinFault& fault) {
  return fault.numCalls > 0 ? fmt::format("in its system call {} on wires", fault.numCalls)
                            : fmt::format("after {}", inMilliseconds(fault.after));
}

}  // namespace

void drawTransport(JoinSchedule& schedule) {
  Random random(testing::mix64(schedule.seed ^ kTransportSalt));
  schedule.hasChecksums.resize(static_cast<std::size_t>(schedule.numRanks));
  if (!schedule.isWired) {
    return;
  }
  schedule.piecesPercent = random.chance(50) ? static_cast<int>(random.between(1, 60)) : 0;
  schedule.shortPercent = random.chance(40) ? static_cast<int>(random.between(1, 40)) : 0;
  schedule.options.tcpTls = random.chance(60) ? TcpTls::kOff : TcpTls::kAuto;
  schedule.beginsTogether = random.chance(40);
  for (Rank process = 0; process < schedule.numRanks; ++process) {
    schedule.hasChecksums[static_cast<std::size_t>(process)] = random.chance(20);
  }
  drawSteps(random, schedule);
  if (random.chance(15)) {
    drawPartition(random, schedule);
  }
  if (random.chance(8)) {
    const bool isRing = random.chance(50);
    schedule.options.tcpTls = isRing ? schedule.options.tcpTls : TcpTls::kAuto;
    schedule.faults = {{.kind = isRing ? JoinFaultKind::kOtherRing : JoinFaultKind::kOtherTls,
                        .process = drawProcess(random, schedule)}};
  }
}

Options JoinSchedule::optionsOf(Rank process) const {
  Options own = options;
  own.tcpCrc = hasChecksums[static_cast<std::size_t>(process)];
  own.ordinaryPath = paths.empty() ? own.ordinaryPath : paths[static_cast<std::size_t>(process)];
  for (const JoinFault& fault : faults) {
    if (fault.process == process && fault.kind == JoinFaultKind::kOtherRing) {
      own.ringBytes *= 2;
    } else if (fault.process == process && fault.kind == JoinFaultKind::kOtherTls) {
      own.tcpTls = TcpTls::kOff;
    }
  }
  return own;
}

std::string describe(const JoinFault& fault, const JoinSchedule& schedule) {
  const std::string label = schedule.labelOf(fault.group);
  switch (fault.kind) {
    case JoinFaultKind::kKill:
      return fmt::format("process {} is killed {}", fault.process, whenOf(fault));
    case JoinFaultKind::kHostDies:
      return fmt::format("process {} loses its host {}", fault.process, whenOf(fault));
    case JoinFaultKind::kStop:
      return fmt::format("process {} stops {} for {}", fault.process, whenOf(fault), inMilliseconds(fault.duration));
    case JoinFaultKind::kAbsent:
      return fmt::format("process {} never comes to {}", fault.process, label);
    case JoinFaultKind::kWrongSize:
      return fmt::format("process {} comes to {} with another world size", fault.process, label);
    case JoinFaultKind::kCannotStart:
      return fmt::format("process {} cannot make its ends in {}", fault.process, label);
    case JoinFaultKind::kStoreSilent:
      return fmt::format("the store{} answers {} requests of process {}", schedule.hasTwoJobs() ? " of " + label : "",
                         fault.numRequests, fault.process);
    case JoinFaultKind::kStoreEnds:
      return fmt::format("the store{} ends after {}", schedule.hasTwoJobs() ? " of " + label : "",
                         inMilliseconds(fault.after));
    case JoinFaultKind::kCannotJoin:
      return fmt::format("process {} cannot join a rank late", fault.process);
    case JoinFaultKind::kPartition:
      return fmt::format("nothing passes between the processes {} and {} after {} for {}", fault.process, fault.other,
                         inMilliseconds(fault.after), inMilliseconds(fault.duration));
    case JoinFaultKind::kOtherRing:
      return fmt::format("process {} has another length of lanes", fault.process);
    case JoinFaultKind::kOtherTls:
      return fmt::format("process {} does not encrypt, and the other processes must", fault.process);
  }
  return "";
}

}  // namespace shardwire::simulate
