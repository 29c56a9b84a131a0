// run() makes the engine over the links of the network, and callAll() calls the operations in the order of the
// schedule. endOldest() waits for the works of an operation. After the first error a rank makes no further call, waits
// for the remaining works, and ends the group.
#include "tests/simulate/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shardwire::simulate {

using internal::CommunicatorImpl;

RankProgram::RankProgram(const Schedule& schedule, Rank rank, Network& network)
    : schedule_(schedule),
      rank_(rank),
      network_(network),
      random_(testing::mix64(schedule.seed * 64 + static_cast<std::uint64_t>(rank))) {}

RankProgram::~RankProgram() = default;

void RankProgram::run() {
  auto engine = internal::Engine::create(network_.peersOf(rank_, schedule_.options), rank_, schedule_.numRanks,
                                         schedule_.options, "g");
  engine_ = engine;
  process_->serve(engine);
  group_ = std::make_unique<CommunicatorImpl>(std::move(engine), std::vector<internal::ForcedAlgorithm>());
  if (!isReset_) {
    callAll();
  }
  while (!calls_.empty()) {
    endOldest();
  }
  process_->world().note(process_->time(), rank_, "ends the group");
  group_.reset();
  for (const auto& call : over_) {
    if (!call->isUntouched()) {
      report_.faults.push_back(fmt::format("{}: a tensor changed after the end", describe(call->operation)));
    }
  }
  report_.isOver = true;
  report_.overAt = process_->time();
}

void RankProgram::callAll() {
  World& world = process_->world();
  for (const Operation& operation : schedule_.operations) {
    if (schedule_.longestPause > 0) {
      process_->computeFor(random_.between(0, schedule_.longestPause));
    }
    world.note(process_->time(), rank_, "calls {}", describe(operation));
    calls_.push_back(makeCall(operation, rank_, schedule_.numRanks));
    if (const Status started = calls_.back()->start(*group_, *engine_.lock()); !started.isOk()) {
      note(operation, started);
      return;
    }
    while (calls_.size() > (operation.waitsAtOnce ? 0 : schedule_.window)) {
      if (!endOldest()) {
        return;
      }
    }
  }
}

// Waits for the oldest operation and checks it.
bool RankProgram::endOldest() {
  std::unique_ptr<Call> call = std::move(calls_.front());
  calls_.pop_front();
  Status status;
  for (const WorkPtr& work : call->works) {
    if (const Status each = work->wait(); !each.isOk() && status.isOk()) {
      status = each;
    }
  }
  call->works.clear();
  note(call->operation, status);
  if (status.isOk() && report_.failedOperation != call->operation.number) {
    ++report_.numDone;
    if (const std::string wrong = call->check(); !wrong.empty()) {
      report_.faults.push_back(fmt::format("{}: {}", describe(call->operation), wrong));
    }
  }
  if (!process_->isDead()) {
    call->overwrite();
    over_.push_back(std::move(call));
  }
  return report_.failure.isOk();
}

void RankProgram::note(const Operation& operation, const Status& status) {
  process_->world().note(
      process_->time(), rank_, "operation {}: {}", operation.number,
      status.isOk() ? "done" : fmt::format("{}: {}", statusCodeName(status.code()), status.message()));
  if (!status.isOk() && report_.failure.isOk()) {
    report_.failure = status;
    report_.failedOperation = operation.number;
    report_.failedAt = process_->time();
  }
}

bool RankProgram::isWaiting() const {
  return std::ranges::any_of(calls_, [](const auto& call) { return call->needsFrames(); });
}

void RankProgram::revoke() {
  if (const auto engine = engine_.lock()) {
    process_->world().note(process_->time(), rank_, "revokes the group");
    engine->revoke(revocationBy(rank_));
  }
}

void RankProgram::reset() {
  isReset_ = true;
  if (const auto engine = engine_.lock()) {
    engine->abort({StatusCode::kAborted, "the simulated process died"});
  }
}

}  // namespace shardwire::simulate
