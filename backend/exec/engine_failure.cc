// What the engine does when something goes wrong: deaths, timeouts, ranks that disagree; and how the others learn of it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/base/log.h"
#include "backend/exec/engine.h"

namespace shardwire::internal {

namespace {

// How often dead peers and deadlines are looked at while nothing moves.
constexpr Duration kSlowCheckEvery = std::chrono::milliseconds(1);
constexpr Duration kStillWaitingAfter = std::chrono::seconds(2);
constexpr std::size_t kMaxNotice = 8 << 10;

std::string seconds(Duration duration) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(duration).count());
}

}  // namespace

Status Engine::failureOf(const Activity& activity, const Status& cause) const {
  const std::string number = activity.ordered() ? fmt::format(" (operation #{})", activity.seq) : std::string();
  return {cause.code(), fmt::format("{}{} failed on {}: {}", *activity.description, number, groupLabel(), cause.message())};
}

void Engine::poison(Status status, bool tellPeers) {
  if (poison_.has_value()) {
    return;
  }
  logInfo("{}: {}", groupLabel(), status.message());
  if (tellPeers) {
    failNotice_ = fmt::format("rank {} gave up: {}", rank_, status.message()).substr(0, kMaxNotice);
    failNoticeDue_.assign(failNoticeDue_.size(), true);
    failNoticeDue_[static_cast<std::size_t>(rank_)] = false;
  }
  poison_ = std::move(status);
  stopFetches();
  flushFailNotices();
}

void Engine::stopFetches() {
  if (std::exchange(fetchesStopped_, true)) {
    return;
  }
  for (const auto& connection : peers_.connections) {
    if (connection != nullptr && !connection->stopFetches()) {
      mustKeepTensors_ = true;
    }
  }
}

void Engine::flushFailNotices() {
  bool due = false;
  for (Rank peer = 0; peer < worldSize_; ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    if (failNoticeDue_[p]) {
      const auto code = static_cast<std::uint32_t>(poison_.has_value() ? poison_->code() : StatusCode::kAborted);
      failNoticeDue_[p] = !sendControl(peer, {.kind = FrameKind::kFail, .a = code}, bytesOf(failNotice_));
      due |= failNoticeDue_[p];
    }
  }
  if (!due) {
    failNotice_.clear();
  }
}

std::string Engine::describeSeq(std::uint64_t seq) const {
  const History& entry = history_[seq % kHistory];
  if (entry.seq == seq && entry.description != nullptr) {
    return *entry.description;
  }
  return seq >= nextSeq_ ? "nothing yet" : "an operation too long ago to name";
}

void Engine::desync(Rank peer, std::uint64_t seq) {
  std::uint64_t& asked = desyncSeq_[static_cast<std::size_t>(peer)];
  if (asked == 0 && sendControl(peer, {.kind = FrameKind::kDesync, .seq = seq, .a = 1}, bytesOf(describeSeq(seq)))) {
    asked = seq;
  }
}

void Engine::abort(Status reason) {
  std::unique_lock lock(mutex_);
  poison(std::move(reason), true);
  pollLocked();
  unlockAndFlush(lock);
}

void Engine::checkSlow(bool quiet) {
  const auto now = Clock::now();
  if (now - lastSlowCheck_ < kSlowCheckEvery) {
    return;
  }
  lastSlowCheck_ = now;
  const Status* needed = nullptr;
  for (Rank peer = 0; peer < worldSize_ && !poison_.has_value(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    if (peer == rank_) {
      continue;
    }
    if (peerDown_[p].isOk()) {
      peerDown_[p] = connection(peer)->health();
      if (!peerDown_[p].isOk()) {
        return;  // what the peer sent before it went, perhaps why it went, is taken by one more poll
      }
    } else if (quiet && needed == nullptr && std::any_of(active_.begin(), active_.end(), [&](const auto& a) { return a->needs(peer); })) {
      needed = &peerDown_[p];
    }
  }
  if (needed != nullptr) {
    // The others learn the cause: this rank may soon leave because of it, and then it is that rank, not this one, that is to be named.
    poison(Status(*needed), true);
  }
  for (std::size_t i = 0; i < active_.size() && !poison_.has_value(); ++i) {
    if (now >= active_[i]->deadline) {
      expire(active_[i]);
      return;
    }
    if (now - active_[i]->started >= kStillWaitingAfter && now - active_[i]->started < kStillWaitingAfter + 2 * kMaxSleep) {
      logInfo("{}: {} still waiting for {}", groupLabel(), *active_[i]->description, active_[i]->waitingFor());
    }
  }
}

void Engine::expire(const std::shared_ptr<Activity>& activity) {
  const Status cause(StatusCode::kTimeout,
                     fmt::format("reached its timeout of {}: {}", seconds(activity->timeout), activity->waitingFor()));
  if (!activity->cancellable()) {
    const Status failure = failureOf(*activity, cause);
    Status others(StatusCode::kTimeout, fmt::format("{} (operation #{}) {}", *activity->description, activity->seq, cause.message()));
    stopFetches();
    finish(*activity, failure);
    poison(std::move(others), true);
    return;
  }
  for (Rank peer = 0; peer < worldSize_; ++peer) {
    if (peer != rank_) {
      // A full control lane would mean that the peer reads nothing at all; then it learns of this by its own timeout.
      (void)sendControl(peer, {.kind = FrameKind::kCancel, .seq = activity->seq}, bytesOf(cause.message()));
    }
  }
  finish(*activity, {StatusCode::kTimeout, fmt::format("{} {}", *activity->description, cause.message())});
}

}  // namespace shardwire::internal
