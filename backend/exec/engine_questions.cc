// What the engine asks peers that keep it waiting, and what it answers. Ranks that disagree mostly notice it by the frames that they get;
// where each waits for the other's there are none, or they come when their operation is over. So:
//   1. Who waits for 100 ms tells the peers that it waits for which operation it is in. A peer that is, was or will be in another one as
//   the
//      same number answers with a desync; it keeps the question until it comes that far.
//   2. A peer that is done with the operation says so. When nothing more comes from it then, the two disagree about sizes.
//   3. Shortly before an operation expires, the peers are asked what they do; the error tells it.
//   4. A process that failed in another group, because a rank died, says so in all its groups. Who then waits for it, and hears that it has
//      nothing in flight, gives up after a while and names the cause.
#include <fmt/format.h>

#include <algorithm>

#include "backend/base/log.h"
#include "backend/exec/engine.h"
#include "backend/exec/process_failures.h"

namespace shardwire::internal {

namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(20);
constexpr Duration kAskAfter = std::chrono::milliseconds(100);
// A peer that is done with an operation has sent its last frames before it says so; over a wire they may be some time under way.
constexpr Duration kLastFramesWithin = std::chrono::seconds(2);
// How long before an operation expires its peers are asked: this, or a fifth of its timeout.
constexpr Duration kLongestNotice = std::chrono::seconds(1);
constexpr Duration kAskAgainAfter = std::chrono::seconds(1);
constexpr std::size_t kMaxText = 2 << 10;

}  // namespace

bool Engine::refuseStale(Rank peer) {
  mutex_.assertHeld();
  const auto frame = connection(peer).peek(Lane::kBulk);
  if (frame.empty()) {
    return false;
  }
  const auto staged = readFrame<StagedFrame>(frame);
  if (!staged.has_value()) {
    poison(unreadableFrame(peer, Lane::kBulk, frame), true);
    return true;
  }
  if (staged->operation.seq >= operations_.nextSeq() || operations_.find(staged->operation.seq) != nullptr) {
    return false;
  }
  desync(peer, staged->operation.seq);
  return true;
}

void Engine::askAndAnswer(Clock::time_point now) {
  if (now - lastQuestions_ < kLookEvery) {
    return;
  }
  lastQuestions_ = now;
  tellAdvice();
  const bool waitsLong = !operations_.inFlight().empty() && now - operations_.inFlight().front()->started >= kAskAfter;
  // A peer that is not joined yet cannot be asked, and has nothing that it could have sent.
  for (const Rank peer : joined_) {
    if (operations_.failure().has_value()) {
      return;
    }
    refuseStale(peer);
    if (waitsLong) {
      askWhereTheyAre(peer, now);
    }
  }
}

void Engine::askWhereTheyAre(Rank peer, Clock::time_point now) {
  Activity* const activity = operations_.oldestThatNeeds(peer);
  if (activity == nullptr || now - activity->started < kAskAfter) {
    return;
  }
  Waiting& known = waiting_[static_cast<std::size_t>(peer)];
  if (activity->ordered() && activity->seq > known.askedSeq && ask(peer, *activity, false)) {
    known.askedSeq = activity->seq;
  }
  judgeWhoIsOver(*activity, peer, now);
  judgeWhoStaysAway(*activity, peer, now);
}

bool Engine::ask(Rank peer, const Activity& activity, bool answerNow) {
  const EdgeBytes bytes = activity.edgeBytes(peer);
  return context_.sendControl(peer,
                              AskFrame{.operation = activity.ordered() ? OperationTag{activity.seq, activity.fingerprint} : OperationTag{},
                                       .sends = bytes.sends,
                                       .receives = bytes.receives,
                                       .wantsAnswer = answerNow ? 1u : 0u});
}

// The same operation, and yet the peer is done and we are not.
void Engine::judgeWhoIsOver(const Activity& activity, Rank peer, Clock::time_point now) {
  const Waiting& known = waiting_[static_cast<std::size_t>(peer)];
  if (!activity.ordered() || known.overSeq != activity.seq) {
    return;
  }
  // Staged bytes come in the order of the operations.
  const auto next = readFrame<StagedFrame>(connection(peer).peek(Lane::kBulk));
  if (next.has_value() ? next->operation.seq > activity.seq : now - known.overSince >= kLastFramesWithin) {
    desync(peer, activity.seq);
  }
}

void Engine::judgeWhoStaysAway(const Activity& activity, Rank peer, Clock::time_point now) {
  Waiting& known = waiting_[static_cast<std::size_t>(peer)];
  if (known.advice.empty() || options_.grace < Duration::zero() || now - std::max(activity.started, known.advisedAt) < options_.grace ||
      now - known.lastLookAt < kAskAgainAfter) {
    return;
  }
  known.lastLookAt = now;
  (void)ask(peer, activity, true);  // again later where there is no room now
}

// An operation that nobody looked at in time, since this machine had other things to do, expires that much later.
void Engine::askBeforeExpiry(Activity& activity, Clock::time_point now) {
  const Duration notice = std::min<Duration>(kLongestNotice, activity.timeout / 5);
  const bool lapses = !activity.ordered() && activity.cancellable();  // no error will tell the answers
  if (activity.hasAskedPeers || lapses || now < activity.deadline - notice) {
    return;
  }
  activity.hasAskedPeers = true;
  activity.deadline = std::max(activity.deadline, now + notice);
  for (Rank peer = 0; peer < worldSize_; ++peer) {
    if (peer != rank_ && activity.needs(peer)) {
      (void)ask(peer, activity, true);  // without room the error comes without the answer
    }
  }
}

std::string Engine::answersAbout(const Activity& activity) const {
  std::string text;
  for (Rank peer = 0; peer < worldSize_; ++peer) {
    const Waiting& known = waiting_[static_cast<std::size_t>(peer)];
    if (peer != rank_ && activity.hasAskedPeers && !known.answer.empty() && activity.needs(peer) &&
        known.answeredSeq == (activity.ordered() ? activity.seq : 0)) {
      text += fmt::format("; rank {} {}", peer, known.answer);
      if (!known.advice.empty()) {
        text += fmt::format(" (another group of its process failed: {})", known.advice);
      }
    }
  }
  return text;
}

// ---- the side that is asked

void Engine::onAsk(Rank from, const Received<AskFrame>& ask, std::span<const std::byte> bytes) {
  const std::uint64_t seq = ask.operation.seq;
  if (seq == 0) {
    answer(from, 0, operations_.inFlight().empty() ? AskedState::kNotCalled : AskedState::kInFlight, operations_.describeNow());
    return;
  }
  const bool isToCome = seq >= operations_.nextSeq();
  if (isToCome && ask.wantsAnswer == 1) {
    answer(from, seq, AskedState::kNotCalled, operations_.describeNow());
    return;
  }
  if (!operations_.isForNow(from, ask.operation, bytes)) {
    return;
  }
  const Activity* const activity = operations_.find(seq);
  if (activity == nullptr) {
    if (operations_.sendGivenUp(from, ask.operation)) {
      return;
    }
    answer(from, seq, AskedState::kOver, "is done with it");
    return;
  }
  const EdgeBytes mine = activity->edgeBytes(from);
  if (mine.sends != ask.receives || mine.receives != ask.sends) {
    desync(from, seq);  // the same call with other sizes
  } else if (ask.wantsAnswer == 1) {
    answer(from, seq, AskedState::kInFlight, operations_.describeNow());
  }
}

void Engine::answer(Rank to, std::uint64_t seq, AskedState state, const std::string& text) {
  // Where there is no room, the peer does without.
  (void)context_.sendControl(
      to, AnswerFrame{.seq = seq, .state = state, .numInFlight = static_cast<std::uint32_t>(operations_.inFlight().size())},
      bytesOf(std::string_view(text).substr(0, kMaxText)));
}

// ---- the side that asked

void Engine::onAnswer(Rank from, const Received<AnswerFrame>& frame) {
  Waiting& known = waiting_[static_cast<std::size_t>(from)];
  known.answer = std::string(textOf(frame.payload));
  known.answeredSeq = frame.seq;
  const auto now = Clock::now();
  if (frame.state == AskedState::kOver && known.overSeq != frame.seq) {
    known.overSeq = frame.seq;
    known.overSince = now;
  }
  // It fails this group only when it was asked for that: it has nothing in flight here, long after another group of its process failed.
  if (frame.state != AskedState::kNotCalled || frame.numInFlight != 0 || known.advice.empty() || options_.grace < Duration::zero()) {
    return;
  }
  const Activity* const activity = operations_.oldestThatNeeds(from);
  if (activity != nullptr && now - std::max(activity->started, known.advisedAt) >= options_.grace) {
    poison({StatusCode::kPeerFailed,
            fmt::format("rank {} does not come: another group of its process failed and is still there ({}). It {}; rank {} waited in {}. "
                        "SHARDWIRE_GRACE_S tells how long to wait for such a rank",
                        from, known.advice, known.answer, rank_, labelOf(*activity))},
           true);
  }
}

void Engine::onAdvice(Rank from, const Received<AdviceFrame>& frame) {
  waiting_[static_cast<std::size_t>(from)].advice = std::string(textOf(frame.payload));
  waiting_[static_cast<std::size_t>(from)].advisedAt = Clock::now();
}

// ---- failures of this process's other groups

void Engine::hearOfFailure() {
  if (mutex_.tryLock()) {
    const MutexLock lock(mutex_, std::adopt_lock);
    if (isClosed_) {
      return;  // its connections are being ended, and the wires are those that they leave by
    }
    tellAdvice();
    std::for_each(peers_.wires.begin(), peers_.wires.end(), [](const auto& wire) { wire->poll(); });
  } else {
    peers_.doorbell->ringSelf();  // whoever has the lock looks soon
    wakeProgress();
  }
}

void Engine::tellAdvice(bool isFarewell) {
  if (isClosed_) {
    return;
  }
  if (const std::uint64_t version = processFailuresVersion(); version != adviceVersion_ || isFarewell) {
    adviceVersion_ = version;
    if (std::string text = processFailureBeside(this, isFarewell).substr(0, kMaxText); text != advice_) {
      advice_ = std::move(text);
      std::for_each(waiting_.begin(), waiting_.end(), [](Waiting& each) { each.adviceDue = true; });
    }
  }
  for (const Rank peer : joined_) {  // the others hear it when they are joined
    bool& due = waiting_[static_cast<std::size_t>(peer)].adviceDue;
    due = due && !context_.sendControl(peer, AdviceFrame{}, bytesOf(advice_));
  }
}

}  // namespace shardwire::internal
