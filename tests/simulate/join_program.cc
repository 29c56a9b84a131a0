// A thread of the process makes its groups in the order of the schedule. make() prepares the report and the machine of
// one group, join() calls the bootstrap, and call() sums a tensor, calls the drawn operations, and waits for all
// ranks. After an error in a group the thread makes no further group. In nested groups the inner group's bootstrap asks
// the outer group which ranks are gone.
#include "tests/simulate/join_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "backend/bootstrap/connect.h"
#include "backend/bootstrap/store_rounds.h"
#include "tests/simulate/call.h"

namespace shardwire::simulate {

using namespace internal;

struct JoinProgram::Made {
  JoinReport* report;
  JoinMachine* machine;
  std::weak_ptr<Engine> engine;
  std::unique_ptr<CommunicatorImpl> group;
  std::deque<std::unique_ptr<Call>> calls{};  // in flight
  std::vector<std::unique_ptr<Call>> over{};  // kept, since nobody may write the tensors any more
  const Operation* failedToStart = nullptr;
  std::vector<std::int64_t> weights{};  // fetched, and kept as the tensors
};

JoinProgram::JoinProgram(JoinWorld& shared, Process& process)
    : shared_(shared), process_(process), publication_(shared.schedule, process.rank()) {
  for (std::size_t number = 0; number < shared.numGroups(); ++number) {
    process.setIsWaiting(number, [] { return false; });
  }
}

void JoinProgram::begin() {
  const JoinSchedule& schedule = shared_.schedule;
  if (schedule.order == JoinOrder::kNested) {
    return process_.addThread([this] { runNested(); });
  }
  for (std::size_t group = 0; group < schedule.groups.size(); ++group) {
    if (schedule.rankIn(group, process_.rank()) >= 0) {
      process_.addThread([this, group] { run(group); });
    }
  }
}

void JoinProgram::run(std::size_t group) {
  process_.computeFor(shared_.schedule.comesAt[static_cast<std::size_t>(process_.rank())]);
  bool goesOn = !process_.isDead();
  const bool isCommon = shared_.schedule.isCommon(group);
  for (int round = 0; goesOn && round < shared_.schedule.numRoundsOf(group); ++round) {
    auto made = make(group, round, nullptr);
    goesOn = made != nullptr;
    if (goesOn) {
      call(*made);
      goesOn = made->report->worked.isOk() && !process_.isDead();
      if (!isCommon) {  // a failed subscription ends at once
        stay(*made->report);
      }
      end(std::move(made));
    }
  }
  if (!isCommon) {
    publication_.end();
  }
}

void JoinProgram::runNested() {
  process_.computeFor(shared_.schedule.comesAt[static_cast<std::size_t>(process_.rank())]);
  auto outer = process_.isDead() ? nullptr : make(0, 0, nullptr);
  if (outer == nullptr) {
    return;
  }
  call(*outer);
  if (shared_.schedule.rankIn(1, process_.rank()) >= 0 && outer->report->worked.isOk() && !process_.isDead()) {
    if (auto inner = make(1, 0, outer->group.get())) {
      call(*inner);
      end(std::move(inner));
    }
  }
  end(std::move(outer));
}

bool JoinProgram::has(JoinFaultKind kind, std::size_t group) const {
  return std::ranges::any_of(shared_.schedule.faults, [&](const JoinFault& fault) {
    return fault.kind == kind && fault.process == process_.rank() && fault.group == group;
  });
}

void JoinProgram::note(const JoinReport& report, const char* what, const Status& status) {
  shared_.world.note(process_.time(), process_.rank(), "{} rank {} {}{}", shared_.schedule.labelOf(report.group),
                     report.rank, what,
                     status.isOk() ? "" : fmt::format(": {}: {}", statusCodeName(status.code()), status.message()));
}

Result<Peers> JoinProgram::join(JoinReport& report, JoinMachine& machine, const Communicator* outer) {
  const JoinSchedule& schedule = shared_.schedule;
  const Members& members = schedule.groups[report.group];
  Options options = schedule.optionsOf(process_.rank());
  if (outer != nullptr) {
    options.statusOfAbsent = [this, outer, &members](Rank rank) {
      return outer->peerStatus(shared_.schedule.rankIn(0, members[static_cast<std::size_t>(rank)]));
    };
  }
  const auto size = static_cast<int>(members.size());
  const bool isWrong = has(JoinFaultKind::kWrongSize, report.group);
  const Time deadline = process_.time() + schedule.timeout;
  const std::string key = schedule.isCommon(report.group) ? fmt::format("subscription {}/", report.round)
                                                          : fmt::format("{}/", report.group);
  SimulatedStore store(shared_.storeOf(report.group), process_, key, deadline);
  report.begin = process_.time();
  note(report, "comes", Status::ok());
  auto peers = connectPeers(machine, store, report.rank, isWrong ? size + 1 : size, options,
                            Deadline(std::chrono::nanoseconds(deadline)), schedule.labelOf(report.group));
  report.made = process_.time();
  note(report, peers.isOk() ? "has joined" : "has not joined", peers.status());
  return peers;
}

std::unique_ptr<JoinProgram::Made> JoinProgram::make(std::size_t group, int round, const Communicator* outer) {
  const JoinSchedule& schedule = shared_.schedule;
  if (has(JoinFaultKind::kAbsent, group)) {
    return nullptr;
  }
  Random random(testing::mix64(schedule.seed * 64 + static_cast<std::uint64_t>(process_.rank())) + group);
  process_.computeFor(random.between(0, schedule.longestPause));
  const std::size_t number = shared_.numberOf(group, round);
  Network& network = *shared_.networks[number];
  JoinReport& report = *reports_.emplace_back(std::make_unique<JoinReport>());
  report.group = group;
  report.round = round;
  report.process = process_.rank();
  report.rank = schedule.rankIn(group, process_.rank());
  JoinMachine& machine = *machines_.emplace_back(std::make_unique<JoinMachine>(
      shared_.ends, network, process_, number, schedule.hosts[static_cast<std::size_t>(process_.rank())],
      has(JoinFaultKind::kCannotStart, group)));
  machine.setLongestHandshake(schedule.longestHandshake);
  const auto cannotJoin = [&](const JoinFault& fault) {
    return fault.kind == JoinFaultKind::kCannotJoin && fault.process == process_.rank();
  };
  if (std::ranges::any_of(schedule.faults, cannotJoin)) {
    machine.failLateJoins();
  }
  auto peers = join(report, machine, outer);
  report.joined = peers.status();
  if (!peers.isOk()) {
    machine.close();
    report.isOver = true;
    return nullptr;
  }
  std::vector<std::int32_t> hosts;
  for (const Rank member : schedule.groups[group]) {
    hosts.push_back(schedule.hosts[static_cast<std::size_t>(member)]);
  }
  machine.complete(*peers, hosts);
  auto engine = Engine::create(std::move(*peers), report.rank, static_cast<int>(hosts.size()),
                               schedule.optionsOf(process_.rank()), schedule.labelOf(group))
                    .value();
  engines_.push_back(engine);
  process_.serve(engine);
  return std::make_unique<Made>(
      Made{.report = &report,
           .machine = &machine,
           .engine = engine,
           .group = std::make_unique<CommunicatorImpl>(std::move(engine), std::vector<ForcedAlgorithm>())});
}

// Ranks come to the operation at other times, so some of them are asleep when a peer first needs the link.
void JoinProgram::idle(const JoinReport& report, int number) {
  const Time longest = shared_.schedule.longestIdle;
  if (longest > 0) {
    const std::uint64_t own = shared_.schedule.seed * 64 + static_cast<std::uint64_t>(process_.rank());
    Random random(testing::mix64(own) + 16 * report.group + static_cast<std::uint64_t>(number) + 7);
    process_.computeFor(random.between(0, longest));
  }
}

// Some ranks keep a failed group for longer than the timeout of an operation. The peers must not wait for its end.
void JoinProgram::stay(const JoinReport& report) {
  Random random(testing::mix64(shared_.schedule.seed * 64 + static_cast<std::uint64_t>(process_.rank())) + 3);
  if (shared_.schedule.isWired && !report.worked.isOk() && !process_.isDead() && random.chance(50)) {
    process_.computeFor(random.between(0, 15) * kSecond);
  }
}

Status JoinProgram::sendFromFirst(Made& made) {
  std::int64_t value = made.report->rank == 0 ? 77 : 0;
  auto sent = made.group->broadcast(TensorView::contiguous(&value, DType::kInt64, {1}), 0, {});
  SW_RETURN_IF_ERROR(sent.status());
  SW_RETURN_IF_ERROR((*sent)->wait());
  if (value != 77) {
    made.report->wrong = "wrong bytes of a broadcast";
  }
  return Status::ok();
}

Status JoinProgram::sum(Made& made) {
  const auto size = static_cast<std::int64_t>(shared_.schedule.groups[made.report->group].size());
  std::vector<std::int64_t> values(5, made.report->rank + 1);
  auto sum = made.group->allReduce(TensorView::contiguous(values.data(), DType::kInt64, {std::ssize(values)}),
                                   ReduceOp::kSum, {});
  SW_RETURN_IF_ERROR(sum.status());
  SW_RETURN_IF_ERROR((*sum)->wait());
  if (values != std::vector<std::int64_t>(5, size * (size + 1) / 2)) {
    made.report->wrong = "wrong bytes of a sum";
  }
  return Status::ok();
}

// The steps of a job. A publisher commits a version after each.
Status JoinProgram::takeSteps(Made& made) {
  for (int step = 0; step < shared_.schedule.numSteps; ++step) {
    idle(*made.report, 2 + step);
    SW_RETURN_IF_ERROR(sum(made));
    publication_.commit(process_, step);
  }
  return Status::ok();
}

Status JoinProgram::fetchAll(Made& made) {
  Subscription subscription(*made.group, shared_.schedule, made.report->rank, process_, publication_);
  const Status status = subscription.fetchAll([&](int number) { idle(*made.report, 2 + number); });
  made.report->wrong += subscription.wrong();
  made.report->numFetched = subscription.numFetched();
  made.weights = subscription.takeWeights();
  return status;
}

// Ends all calls, also after an error.
Status JoinProgram::callDrawn(Made& made) {
  const JoinSchedule& schedule = shared_.schedule;
  const JoinReport& report = *made.report;
  Status status;
  for (const Operation& operation : schedule.operations[report.group]) {
    note(report, describe(operation).c_str(), Status::ok());
    made.calls.push_back(makeCall(operation, report.rank, static_cast<int>(schedule.groups[report.group].size())));
    status = made.calls.back()->start(*made.group, *made.engine.lock());
    made.failedToStart = status.isOk() ? nullptr : &operation;
    while (status.isOk() && made.calls.size() > (operation.waitsAtOnce ? 0 : schedule.window)) {
      status = endOldest(made);
    }
    if (!status.isOk()) {
      break;
    }
  }
  while (!made.calls.empty()) {
    const Status each = endOldest(made);
    status = status.isOk() ? each : status;
  }
  return status;
}

Status JoinProgram::endOldest(Made& made) {
  std::unique_ptr<Call> call = std::move(made.calls.front());
  made.calls.pop_front();
  const bool hasFailed = made.failedToStart == &call->operation;
  Status status;
  for (const WorkPtr& work : call->works) {
    const Status each = work->wait();
    status = status.isOk() ? each : status;
  }
  call->works.clear();
  if (const std::string wrong = status.isOk() && !hasFailed ? call->check() : ""; !wrong.empty()) {
    made.report->wrong = fmt::format("{}: {}", describe(call->operation), wrong);
  }
  if (!process_.isDead()) {
    call->overwrite();
    made.over.push_back(std::move(call));
  }
  return status;
}

void JoinProgram::call(Made& made) {
  JoinReport& report = *made.report;
  idle(report, 0);
  const bool isFirst = shared_.schedule.isWired && !shared_.schedule.beginsTogether;
  report.worked = isFirst ? sendFromFirst(made) : Status::ok();
  if (report.worked.isOk()) {
    idle(report, 1);
    report.worked = sum(made);
  }
  if (report.worked.isOk() && shared_.schedule.hasTwoJobs()) {
    report.worked = shared_.schedule.isCommon(report.group) ? fetchAll(made) : takeSteps(made);
  }
  if (report.worked.isOk() && !shared_.schedule.operations.empty()) {
    report.worked = callDrawn(made);
  }
  report.hasCalledAll = report.worked.isOk();
  if (report.worked.isOk()) {
    auto last = made.group->barrier({});
    report.worked = last.isOk() ? (*last)->wait() : last.status();
  }
  report.ended = process_.time();
  note(report, report.worked.isOk() ? "is done" : "has failed", report.worked);
}

void JoinProgram::end(std::unique_ptr<Made> made) {
  made->group.reset();
  for (const auto& call : made->over) {
    if (!call->isUntouched()) {
      made->report->wrong = fmt::format("{}: a tensor changed after the end", describe(call->operation));
    }
  }
  if (!std::ranges::all_of(made->weights, [](std::int64_t each) { return each == kOverwrittenWeight; })) {
    made->report->wrong = "fetched weights changed after the end";
  }
  made->machine->close();
  made->report->isOver = true;
  internal::noteEndOfGroup();
}

void JoinProgram::reset() {
  for (const auto& each : engines_) {
    if (const auto engine = each.lock()) {
      engine->abort({StatusCode::kAborted, "the simulated process died"});
    }
  }
}

bool JoinProgram::hasEngine() const {
  return std::ranges::any_of(engines_, [](const auto& each) { return !each.expired(); });
}

}  // namespace shardwire::simulate
