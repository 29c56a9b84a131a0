// A gone peer fails the group only when an operation needs the peer, and not before one more poll took the peer's last
// frames: perhaps the reason for leaving. An operation that reaches the deadline fails the group, too, since a peer may
// be writing to the operation's tensors. Two kinds end alone and leave the group usable: an operation that has touched
// no tensor (compileOp), and a message that may lapse. Shortly before a deadline the peers are asked for their current
// activity (Questions). The error of the timeout contains the answers, and the known facts about peers without a link.
// The oldest operation that waits for long is a warning with the same text, long before most timeouts.
#include "backend/exec/slow_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "backend/base/log.h"

namespace shardwire::internal {

namespace {

// The first line of log about an operation that waits, at level info. Warnings begin at Options::warnAfter.
constexpr Duration kInfoAfter = std::chrono::seconds(2);
// A peer may come just before a deadline: while polls move anything, operations have so much longer. A gone peer may
// have sent its reason: while polls move anything, the peer counts as gone so much later.
constexpr Duration kMovesWithin = std::chrono::milliseconds(100);
// An operation with such a timeout waits for what may never come, as the holder of a queue does: no line of log.
constexpr Duration kForEver = std::chrono::hours(24 * 365);

// A timeout of 0 is kept as another value, see timeoutOf().
std::string seconds(Duration duration) {
  const bool isZero = duration == timeoutOf(Duration::zero());
  const double count = isZero ? 0 : std::chrono::duration<double>(duration).count();
  return count < 1000 ? fmt::format("{:.3g} s", count) : fmt::format("{:.0f} s", count);
}

// The other peers are notified of the cause: this rank may soon leave because of the failure, and then the peers'
// errors must name the gone peer, and not this rank.
void failIfGoneIsNeeded(GroupState& group, Clock::time_point now) {
  const std::vector<Rank>& all = group.links.gone();
  const bool isSomePeerNeeded =
      static_cast<int>(all.size()) == group.context.worldSize - 1 &&
      std::ranges::any_of(group.operations.inFlight(), [](const auto& each) { return each->needsSomePeer(); });
  std::vector<Rank> gone;
  std::ranges::copy_if(all, std::back_inserter(gone), [&](Rank peer) {
    return isSomePeerNeeded || group.operations.oldestThatNeeds(peer) != nullptr;
  });
  if (!gone.empty() && !group.links.mayLearnMore(group.operations.inFlight(), now)) {
    group.failure.fail(goneError(group, gone));
    return;
  }
  // A gone peer's frames of another call stay in the lane, and look as if the peer had done its part.
  for (auto peer = all.begin(); gone.empty() && peer != all.end() && !group.operations.inFlight().empty(); ++peer) {
    if (Status unanswered = group.disagreements.unanswered(*peer, group.links.whyGone(*peer)); !unanswered.isOk()) {
      group.failure.fail(std::move(unanswered));
      return;
    }
  }
}

// Operations take turns in the lanes: an older operation may hold this operation up.
std::string whyEarlierWaits(const GroupState& group, const Activity& activity) {
  const Activity* const earlier = group.operations.earlierThan(activity);
  return earlier == nullptr
             ? std::string()
             : fmt::format("; {}, called before, is not over: {}", labelOf(*earlier), earlier->waitingFor());
}

std::string whyWaits(const GroupState& group, const Activity& activity) {
  return fmt::format("{}{}{}{}", activity.waitingFor(), whyEarlierWaits(group, activity),
                     group.links.whyMissing(activity), group.questions.answersAbout(activity));
}

// The line about the oldest operation; later operations mostly wait for the same ranks.
void logLongWait(GroupState& group, Clock::time_point now) {
  const auto& inFlight = group.operations.inFlight();
  const auto oldest =
      std::ranges::find_if(inFlight, [](const auto& each) { return !each->mayLapse() && each->timeout < kForEver; });
  if (oldest == inFlight.end()) {
    return;
  }
  Activity& activity = **oldest;
  if (activity.started == Clock::time_point{}) {
    return;  // called just now
  }
  const Duration warnAfter = group.warnAfter > Duration::zero() ? group.warnAfter : kForEver;
  if (activity.noticeAfter == Duration::zero()) {
    activity.noticeAfter = isLogged(LogLevel::kInfo) ? std::min(kInfoAfter, warnAfter) : warnAfter;
  }
  if (activity.timeout - activity.noticeAfter < 2 * Questions::kLongestNotice) {
    return;  // the error comes at that time
  }
  const Clock::time_point due = activity.started + activity.noticeAfter;
  const bool isWarning = activity.noticeAfter >= warnAfter;
  if ((isWarning && !group.questions.askBeforeNotice(activity, due, now)) || now < due) {
    return;
  }
  logAt(isWarning ? LogLevel::kWarn : LogLevel::kInfo, "{}: {} has waited for {} of at most {}: {}",
        group.context.label, labelOf(activity), seconds(activity.noticeAfter), seconds(activity.timeout),
        whyWaits(group, activity));
  group.questions.forgetAnswers(activity);
  activity.noticeAfter *= 2;
}

void expire(GroupState& group, const std::shared_ptr<Activity>& activity) {
  const Status cause(StatusCode::kTimeout, fmt::format("reached its timeout of {}: {}", seconds(activity->timeout),
                                                       whyWaits(group, *activity)));
  if (activity->outlivesTimeout()) {
    activity->deadline = Clock::now() + kForEver;
    return;
  }
  if (!activity->cancellable()) {
    const Status failure = group.operations.failureOf(*activity, cause);
    Status others(StatusCode::kTimeout, fmt::format("{} {}", labelOf(*activity), cause.message()));
    group.failure.stopFetches();
    group.operations.finish(*activity, failure);
    group.failure.fail(std::move(others));
    return;
  }
  activity->giveUp();
  Status failure(StatusCode::kTimeout, fmt::format("{} {}", activity->description.text(), cause.message()));
  if (activity->ordered()) {
    group.operations.noteGivenUp(activity->tag(), group.context.rank, cause.message());
    for (const Rank peer : group.links.joined()) {
      // A full control lane would mean a peer that reads nothing at all; the peer then learns of the cancel by its own
      // timeout.
      (void)group.context.sendText(peer, CancelFrame{{activity->seq, activity->fingerprint}}, cause.message());
    }
    group.failure.count(StatusCode::kTimeout);
  }
  group.operations.finish(*activity, std::move(failure));
}

}  // namespace

void checkSlow(GroupState& group, bool quiet) {
  const auto now = Clock::now();
  if (group.links.isClosed() || now - group.lastSlowCheck < kSlowCheckEvery) {
    return;
  }
  group.lastSlowCheck = now;
  if (group.operations.failure().isOk()) {
    const std::vector<Rank> found = group.links.takeGone();
    std::ranges::for_each(found, [&](Rank peer) { group.oneSided.gone(peer); });
    if (!found.empty()) {
      return;
    }
    if (quiet || now - group.links.lastGone() >= kMovesWithin) {
      failIfGoneIsNeeded(group, now);
    }
  }
  if (group.operations.failure().isOk() && quiet) {
    group.questions.look(now);
  }
  const auto& inFlight = group.operations.inFlight();
  for (std::size_t i = 0; i < inFlight.size() && group.operations.failure().isOk(); ++i) {
    group.questions.askBeforeExpiry(*inFlight[i], now);
    if (now - inFlight[i]->deadline >= (quiet ? Duration::zero() : kMovesWithin)) {
      expire(group, inFlight[i]);
      return;
    }
  }
  if (quiet && group.operations.failure().isOk()) {
    logLongWait(group, now);
  }
}

// Contains the reasons of all gone peers, as far as the reasons differ: some peers leave because of other peers.
Status goneError(const GroupState& group, const std::vector<Rank>& gone) {
  std::string text;
  for (const Rank peer : gone) {
    const std::string& why = group.links.whyGone(peer).message();
    if (text.find(why) == std::string::npos) {
      const std::string& advice = group.questions.adviceOf(peer);
      text += fmt::format(
          "{}{}{}", text.empty() ? "" : "; ", why,
          advice.empty() ? "" : fmt::format(", after another group of its process had failed ({})", advice));
    }
  }
  return {group.links.whyGone(gone.front()).code(), std::move(text)};
}

}  // namespace shardwire::internal
