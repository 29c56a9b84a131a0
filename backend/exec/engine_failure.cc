// What the engine does when something goes wrong. The first reason poisons the group on this rank, and stays: a peer that died or left, a
// timeout, ranks that disagree, a malformed frame. The peers are told why (fail frames), as soon as their lanes have room; who hears
// of a failure tells it on, since the first teller may be gone before it has told everybody. Before callers get their tensors back, nothing
// on the wires may touch them any more (stopFetches). Deaths and deadlines are looked at while nothing moves, once in a millisecond; only
// the timeout of an operation that has touched no tensor, or of a message that may lapse, leaves the group usable.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "backend/base/log.h"
#include "backend/exec/engine.h"
#include "backend/exec/one_sided.h"
#include "backend/exec/process_failures.h"

namespace shardwire::internal {

namespace {

constexpr Duration kStillWaitingAfter = std::chrono::seconds(2);
constexpr std::size_t kMaxNotice = 8 << 10;
constexpr Duration kForEver = std::chrono::hours(24 * 365);

std::string seconds(Duration duration) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(duration).count());
}

}  // namespace

void Engine::fail(Status why) {
  mutex_.assertHeld();
  poison(std::move(why), true);
}

void Engine::poison(Status status, bool tellPeers) {
  if (operations_.failure().has_value()) {
    return;
  }
  logInfo("{}: {}", groupLabel(), status.message());
  if (tellPeers) {
    tellFailure(fmt::format("rank {} gave up: {}", rank_, status.message()));
  }
  if (status.code() == StatusCode::kPeerFailed) {
    addProcessFailure(this, fmt::format("{}: {}", groupLabel(), status.message()).substr(0, kMaxNotice));
  }
  failureDue_ |= failureCallback_.add(status.code());
  operations_.fail(std::move(status));
  oneSided_->end();
  stopFetches();
  flushFailNotices();
}

void Engine::tellFailure(std::string notice) {
  failNotice_ = std::move(notice);
  hasNotices_ = true;
  hasWork_.store(true, std::memory_order_seq_cst);
  failNotice_.resize(std::min(failNotice_.size(), kMaxNotice));
  failNoticeDue_.assign(failNoticeDue_.size(), true);
  failNoticeDue_[static_cast<std::size_t>(rank_)] = false;
}

// A peer failed. Its words go on to all others: it may end before it has told everybody, and who then waits for this rank must know why it
// does not come.
void Engine::onFail(const Received<FailFrame>& frame) {
  if (operations_.failure().has_value()) {
    return;
  }
  Status status(static_cast<StatusCode>(frame.code), std::string(textOf(frame.payload)));
  tellFailure(status.message());
  poison(std::move(status), false);
}

void Engine::stopFetches() {
  if (std::exchange(fetchesStopped_, true)) {
    return;
  }
  for (const auto& connection : peers_.connections) {
    if (connection != nullptr && !connection->stopFetches()) {
      operations_.keepTensors();
    }
  }
}

void Engine::flushFailNotices() {
  bool due = false;
  for (const Rank peer : joined_) {
    const auto p = static_cast<std::size_t>(peer);
    if (failNoticeDue_[p]) {
      const auto code =
          static_cast<std::uint32_t>(operations_.failure().has_value() ? operations_.failure()->code() : StatusCode::kAborted);
      failNoticeDue_[p] = !context_.sendText(peer, FailFrame{.code = code}, failNotice_);
      due |= failNoticeDue_[p];
    }
  }
  hasNotices_ = due;
}

void Engine::desync(Rank peer, std::uint64_t seq) {
  mutex_.assertHeld();
  std::uint64_t& asked = desyncSeq_[static_cast<std::size_t>(peer)];
  if (asked == 0 && !operations_.failure().has_value() &&
      context_.sendText(peer, DesyncFrame{.seq = seq, .wantsAnswer = 1, .call = static_cast<std::uint32_t>(operations_.callOf(seq))},
                        operations_.describe(seq))) {
    asked = seq;
  }
}

void Engine::abort(Status reason) {
  Completions done;
  {
    const MutexLock lock(mutex_);
    poison(std::move(reason), true);
    pollLocked();
    takeCompletions(&done);
  }
  flush(&done);
}

void Engine::checkSlow(bool quiet) {
  const auto now = Clock::now();
  if (isClosed_ || now - lastSlowCheck_ < kSlowCheckEvery) {
    return;
  }
  lastSlowCheck_ = now;
  for (const Rank peer : joined_) {
    if (operations_.failure().has_value() || !peerDown_[static_cast<std::size_t>(peer)].isOk()) {
      continue;
    }
    if (Status health = connection(peer).health(); !health.isOk()) {
      noteDown(peer, std::move(health));
      oneSided_->gone(peer);
      return;  // what the peer sent before it went, perhaps why it went, is taken by one more poll
    }
  }
  std::vector<Rank> gone;
  std::ranges::copy_if(down_, std::back_inserter(gone), [&](Rank peer) {
    mutex_.assertHeld();
    return quiet && !operations_.failure().has_value() && operations_.oldestThatNeeds(peer) != nullptr;
  });
  if (!gone.empty() && !mayHearMore(now)) {
    // The others learn the cause: this rank may soon leave because of it, and then it is that rank, not this one, that is to be named.
    poison(goneError(gone), true);
  }
  if (!operations_.failure().has_value() && quiet) {
    askAndAnswer(now);
  }
  for (std::size_t i = 0; i < operations_.inFlight().size() && !operations_.failure().has_value(); ++i) {
    askBeforeExpiry(*operations_.inFlight()[i], now);
    if (now >= operations_.inFlight()[i]->deadline) {
      expire(operations_.inFlight()[i]);
      return;
    }
    if (now - operations_.inFlight()[i]->started >= kStillWaitingAfter &&
        now - operations_.inFlight()[i]->started < kStillWaitingAfter + 2 * kMaxSleep) {
      logInfo("{}: {} has waited for 2 s: {}", groupLabel(), labelOf(*operations_.inFlight()[i]), operations_.inFlight()[i]->waitingFor());
    }
  }
}

void Engine::noteDown(Rank peer, Status why) {
  Status& known = peerDown_[static_cast<std::size_t>(peer)];
  if (known.isOk()) {
    down_.insert(std::ranges::upper_bound(down_, peer), peer);
  }
  known = std::move(why);
}

// With their reasons, as far as they are different: of several that are gone, some went because of the others.
Status Engine::goneError(const std::vector<Rank>& gone) const {
  std::string text;
  for (const Rank peer : gone) {
    const auto p = static_cast<std::size_t>(peer);
    const std::string& why = peerDown_[p].message();
    if (text.find(why) == std::string::npos) {
      const std::string& advice = waiting_[p].advice;
      text += fmt::format("{}{}{}", text.empty() ? "" : "; ", why,
                          advice.empty() ? "" : fmt::format(", after another group of its process had failed ({})", advice));
    }
  }
  return {peerDown_[static_cast<std::size_t>(gone.front())].code(), std::move(text)};
}

void Engine::expire(const std::shared_ptr<Activity>& activity) {
  const Status cause(StatusCode::kTimeout, fmt::format("reached its timeout of {}: {}{}", seconds(activity->timeout),
                                                       activity->waitingFor(), missingLinks(*activity) + answersAbout(*activity)));
  if (activity->outlivesTimeout()) {
    activity->deadline = Clock::now() + kForEver;
    return;
  }
  if (!activity->cancellable()) {
    const Status failure = operations_.failureOf(*activity, cause);
    Status others(StatusCode::kTimeout, fmt::format("{} {}", labelOf(*activity), cause.message()));
    stopFetches();
    finish(*activity, failure);
    poison(std::move(others), true);
    return;
  }
  activity->giveUp();
  if (!activity->ordered()) {
    finish(*activity, {StatusCode::kTimeout, fmt::format("{} {}", *activity->description, cause.message())});
    return;
  }
  operations_.noteGivenUp(activity->tag(), rank_, cause.message());
  for (const Rank peer : joined_) {
    // A full control lane would mean that the peer reads nothing at all; then it learns of this by its own timeout.
    (void)context_.sendText(peer, CancelFrame{{activity->seq, activity->fingerprint}}, cause.message());
  }
  failureDue_ |= failureCallback_.add(StatusCode::kTimeout);
  finish(*activity, {StatusCode::kTimeout, fmt::format("{} {}", *activity->description, cause.message())});
}

}  // namespace shardwire::internal
