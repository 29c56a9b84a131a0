#include "tests/simulate/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shardwire::simulate {

using internal::CommunicatorImpl;

RankProgram::RankProgram(const Schedule& schedule, std::size_t group, Rank rank, Network& network, Process& process)
    : schedule_(schedule),
      network_(network),
      process_(process),
      report_{.group = group, .rank = rank, .process = process.rank()} {}

RankProgram::~RankProgram() = default;

void RankProgram::begin() {
  const auto size = static_cast<int>(schedule_.groups[group()].size());
  const std::string label = schedule_.labelOf(group());
  auto engine = internal::Engine::create(network_.peersOf(report_.rank, schedule_.options), report_.rank, size,
                                         schedule_.options, label.empty() ? "g" : label)
                    .value();
  engine_ = engine;
  report_.madeAt = process_.world().elapsed(process_.time());
  process_.serve(engine);
  group_ = std::make_unique<CommunicatorImpl>(std::move(engine), std::vector<internal::ForcedAlgorithm>());
}

bool RankProgram::call(const Operation& operation) {
  network_.note(report_.rank, "calls {}", describe(operation));
  heldSince_ = process_.time();
  if (Recording* const recording = process_.world().recording()) {
    const std::string label = schedule_.labelOf(group());
    recording->bars.push_back({.begin = process_.world().elapsed(process_.time()),
                               .row = process_.rank(),
                               .group = group(),
                               .operation = operation.number,
                               .text = label + (label.empty() ? "" : ": ") + describe(operation)});
  }
  calls_.push_back(makeCall(operation, report_.rank, static_cast<int>(schedule_.groups[group()].size())));
  const Status started = calls_.back()->start(*group_, *engine_.lock());
  noteHeld();
  if (!started.isOk()) {
    note(operation, started);
    return false;
  }
  while (calls_.size() > (operation.waitsAtOnce ? 0 : schedule_.window)) {
    if (!endOldest()) {
      return false;
    }
  }
  return true;
}

void RankProgram::waitForAll() {
  while (!calls_.empty()) {
    endOldest();
  }
}

void RankProgram::end() {
  network_.note(report_.rank, "ends the group");
  group_.reset();
  for (const auto& call : over_) {
    if (!call->isUntouched()) {
      report_.faults.push_back(fmt::format("{}: a tensor changed after the end", describe(call->operation)));
    }
  }
  report_.isOver = true;
}

// Waits for the oldest operation and checks it.
bool RankProgram::endOldest() {
  std::unique_ptr<Call> call = std::move(calls_.front());
  calls_.pop_front();
  Status status;
  heldSince_ = process_.time();
  for (const WorkPtr& work : call->works) {
    if (const Status each = work->wait(); !each.isOk() && status.isOk()) {
      status = each;
    }
  }
  call->works.clear();
  noteHeld();
  note(call->operation, status);
  if (status.isOk() && report_.failedOperation != call->operation.number) {
    ++report_.numDone;
    if (const std::string wrong = call->check(); !wrong.empty()) {
      report_.faults.push_back(fmt::format("{}: {}", describe(call->operation), wrong));
    }
  }
  if (!process_.isDead()) {
    call->overwrite();
    over_.push_back(std::move(call));
  }
  return report_.failure.isOk();
}

void RankProgram::noteHeld() {
  report_.longestCall = std::max(report_.longestCall, process_.time() - heldSince_);
}

void RankProgram::note(const Operation& operation, const Status& status) {
  network_.note(report_.rank, "operation {}: {}", operation.number,
                status.isOk() ? "done" : fmt::format("{}: {}", statusCodeName(status.code()), status.message()));
  if (Recording* const recording = process_.world().recording()) {
    recording->endBar(process_.rank(), operation.number, process_.world().elapsed(process_.time()),
                      status.isOk() ? Recording::Outcome::kDone : Recording::Outcome::kFailed, status.message());
  }
  if (!status.isOk() && report_.failure.isOk()) {
    report_.failure = status;
    report_.failedOperation = operation.number;
    report_.failedAt = process_.world().elapsed(process_.time());
  }
}

bool RankProgram::isWaiting() const {
  return std::ranges::any_of(calls_, [](const auto& call) { return call->needsFrames(); });
}

void RankProgram::revoke() {
  if (const auto engine = engine_.lock()) {
    network_.note(report_.rank, "revokes the group");
    engine->revoke(revocationBy(report_.rank));
  }
}

void RankProgram::reset() {
  if (const auto engine = engine_.lock()) {
    engine->abort({StatusCode::kAborted, "the simulated process died"});
  }
}

}  // namespace shardwire::simulate
