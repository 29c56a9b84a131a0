// Ranks that disagree mostly notice the disagreement by the received frames. Where each rank waits for frames of the
// other rank no frames come, or frames come after the operation is over. So:
//   1. After waiting for 100 ms a rank sends the peers the operation in which the rank waits. A peer that is, was or
//      will be in another operation of the same number answers with a desync; a peer without a call so far keeps the
//      question.
//   2. A peer reports a finished operation. If no more frames come from the peer then, the ranks disagree about sizes.
//   3. Shortly before an operation expires the peers are asked for their current activity, and the error contains the
//      answers.
//   4. A process that failed in another group because a rank died reports this in all groups of the process. A rank
//      that waits for the process, and learns that the process has nothing in flight here, gives up after a while and
//      names the cause.
#include "backend/exec/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/bootstrap/summary.h"
#include "backend/exec/process_failures.h"

namespace shardwire::internal {

namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(20);
constexpr Duration kAskAfter = std::chrono::milliseconds(100);
// A peer sends the last frames of an operation before saying that the operation is over; over a wire the frames may be
// under way for some time.
constexpr Duration kLastFramesWithin = std::chrono::seconds(2);
// The time between the question to the peers and the expiry of an operation: this, or a fifth of the operation's
// timeout.
constexpr Duration kLongestNotice = std::chrono::seconds(1);
constexpr Duration kAskAgainAfter = std::chrono::seconds(1);
// Between two questions to a peer without an answer for the error of an operation that expires.
constexpr Duration kAskForErrorEvery = std::chrono::milliseconds(200);
constexpr std::size_t kMaxText = 2 << 10;
constexpr const char* kOverText = "is done with it";

}  // namespace

Questions::Questions(const RunContext& context, Operations& operations, const PeerLinks& links, Duration grace)
    : context_(context),
      operations_(operations),
      links_(links),
      grace_(grace),
      waiting_(static_cast<std::size_t>(context.worldSize)) {}

void Questions::look(Clock::time_point now) {
  if (now - lastLook_ < kLookEvery) {
    return;
  }
  lastLook_ = now;
  sendAdvice();
  const bool waitsLong = !operations_.inFlight().empty() && now - operations_.inFlight().front()->started >= kAskAfter;
  // A peer without a link cannot be asked, and cannot have sent anything.
  for (const Rank peer : links_.joined()) {
    if (!operations_.failure().isOk()) {
      return;
    }
    context_.refuseStale(peer);
    if (waitsLong) {
      askAboutOldest(peer, now);
    }
  }
}

void Questions::askAboutOldest(Rank peer, Clock::time_point now) {
  Activity* const activity = operations_.oldestThatNeeds(peer);
  if (activity == nullptr || now - activity->started < kAskAfter) {
    return;
  }
  Waiting& known = waiting_[static_cast<std::size_t>(peer)];
  if (activity->ordered() && activity->seq > known.askedSeq && ask(peer, *activity, false)) {
    known.askedSeq = activity->seq;
  }
  checkWhetherOver(*activity, peer, now);
  checkWhetherAbsent(*activity, peer, now);
}

bool Questions::ask(Rank peer, const Activity& activity, bool answerNow) {
  const EdgeBytes bytes = activity.edgeBytes(peer);
  return context_.sendControl(
      peer,
      AskFrame{.operation = activity.ordered() ? OperationTag{activity.seq, activity.fingerprint} : OperationTag{},
               .sends = bytes.sends,
               .receives = bytes.receives,
               .wantsAnswer = answerNow ? 1u : 0u});
}

// Both ranks are in the same operation, and yet only the peer has finished the operation.
void Questions::checkWhetherOver(const Activity& activity, Rank peer, Clock::time_point now) {
  const Waiting& known = waiting_[static_cast<std::size_t>(peer)];
  if (!activity.ordered() || known.overSeq != activity.seq) {
    return;
  }
  // Staged bytes arrive in the order of the operations.
  const auto next = readFrame<StagedFrame>(context_.connection(peer).peek(Lane::kBulk));
  if (next.has_value() ? next->operation.seq > activity.seq : now - known.overSince >= kLastFramesWithin) {
    context_.desync(peer, activity.seq);
  }
}

void Questions::checkWhetherAbsent(const Activity& activity, Rank peer, Clock::time_point now) {
  Waiting& known = waiting_[static_cast<std::size_t>(peer)];
  if (isPastGrace(activity, known, now) && now - known.lastAskedAt >= kAskAgainAfter) {
    known.lastAskedAt = now;
    (void)ask(peer, activity, true);  // without room now, this rank asks again later
  }
}

// Whether the peer has had the whole grace time to come since another group of the peer's process failed.
bool Questions::isPastGrace(const Activity& activity, const Waiting& known, Clock::time_point now) const {
  return !known.advice.empty() && grace_ >= Duration::zero() &&
         now - std::max(activity.started, known.advisedAt) >= grace_;
}

// This machine may have been busy with other work when the time to ask came: then the operation expires later by this
// delay.
void Questions::askBeforeExpiry(Activity& activity, Clock::time_point now) {
  const Duration notice = std::min<Duration>(kLongestNotice, activity.timeout / 5);
  const bool lapses = !activity.ordered() && activity.cancellable();  // no error will contain the answers
  if (lapses || now < activity.deadline - notice) {
    return;
  }
  if (activity.askedPeersAt == Clock::time_point{}) {
    activity.askedPeersAt = now;
    activity.deadline = std::max(activity.deadline, now + notice);
  }
  for (Rank peer = 0; peer < context_.worldSize; ++peer) {
    Waiting& known = waiting_[static_cast<std::size_t>(peer)];
    // Without room in the lane the question goes with the next look.
    if (isWaitedFor(activity, peer) && answerAbout(activity, known).empty() &&
        now - known.askedForErrorAt >= kAskForErrorEvery && ask(peer, activity, true)) {
      known.askedForErrorAt = now;
    }
  }
}

bool Questions::isWaitedFor(const Activity& activity, Rank peer) const {
  return peer != context_.rank && (activity.needs(peer) || activity.needsSomePeer());
}

// Several operations often expire at the same time. A later answer about another operation says as well what the peer
// does.
std::string_view Questions::answerAbout(const Activity& activity, const Waiting& known) const {
  if (activity.ordered() && known.overSeq == activity.seq) {
    return kOverText;
  }
  const bool isAbout = known.answeredSeq == (activity.ordered() ? activity.seq : 0);
  return isAbout || known.answeredAt >= activity.askedPeersAt ? known.answer : std::string_view();
}

std::string Questions::answersAbout(const Activity& activity) const {
  std::string text;
  std::vector<Rank> silent;
  if (activity.askedPeersAt == Clock::time_point{}) {
    return text;
  }
  for (Rank peer = 0; peer < context_.worldSize; ++peer) {
    const Waiting& known = waiting_[static_cast<std::size_t>(peer)];
    if (!isWaitedFor(activity, peer)) {
      continue;
    }
    if (const std::string_view answer = answerAbout(activity, known); answer.empty()) {
      silent.push_back(peer);
    } else {
      text += fmt::format("; rank {} {}", peer, answer);
      if (!known.advice.empty()) {
        text += fmt::format(" (another group of its process failed: {})", known.advice);
      }
    }
  }
  return silent.empty() ? text : fmt::format("{}; {} gave no answer", text, rankList(silent));
}

// ---- the rank that is asked

void Questions::onAsk(Rank from, const Received<AskFrame>& ask, std::span<const std::byte> bytes) {
  const std::uint64_t seq = ask.operation.seq;
  if (seq == 0) {
    answer(from, 0, operations_.inFlight().empty() ? AskedState::kNotCalled : AskedState::kInFlight,
           operations_.describeNow());
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
    answer(from, seq, AskedState::kOver, std::string(kOverText));
    return;
  }
  const EdgeBytes mine = activity->edgeBytes(from);
  if (mine.sends != ask.receives || mine.receives != ask.sends) {
    context_.desync(from, seq);  // the same call with other sizes
  } else if (ask.wantsAnswer == 1) {
    answer(from, seq, AskedState::kInFlight, operations_.describeNow());
  }
}

void Questions::answer(Rank to, std::uint64_t seq, AskedState state, const std::string& text) {
  // Without room for the frame the peer gets no answer.
  (void)context_.sendControl(
      to,
      AnswerFrame{.seq = seq, .state = state, .numInFlight = static_cast<std::uint32_t>(operations_.inFlight().size())},
      bytesOf(std::string_view(text).substr(0, kMaxText)));
}

// ---- the rank that asked

void Questions::onAnswer(Rank from, const Received<AnswerFrame>& frame) {
  Waiting& known = waiting_[static_cast<std::size_t>(from)];
  const auto now = Clock::now();
  if (frame.state == AskedState::kOver) {
    if (known.overSeq != frame.seq) {
      known.overSeq = frame.seq;
      known.overSince = now;
    }
    return;
  }
  known.answer = std::string(textOf(frame.payload));
  known.answeredSeq = frame.seq;
  known.answeredAt = now;
  // The answer fails this group only when the peer has nothing in flight here, long after another group of the peer's
  // process failed.
  const Activity* const activity = operations_.oldestThatNeeds(from);
  if (frame.state == AskedState::kNotCalled && frame.numInFlight == 0 && activity != nullptr &&
      isPastGrace(*activity, known, now)) {
    context_.fail(
        {StatusCode::kPeerFailed, fmt::format("rank {} does not come: another group of its process failed and is still "
                                              "there ({}). It {}; rank {} waited "
                                              "in {}. SHARDWIRE_GRACE_S sets how long a rank waits for it",
                                              from, known.advice, known.answer, context_.rank, labelOf(*activity))});
  }
}

void Questions::onAdvice(Rank from, const Received<AdviceFrame>& frame) {
  waiting_[static_cast<std::size_t>(from)].advice = std::string(textOf(frame.payload));
  waiting_[static_cast<std::size_t>(from)].advisedAt = Clock::now();
}

void Questions::sendAdvice(bool isFarewell) {
  if (links_.isClosed()) {
    return;
  }
  if (const std::uint64_t version = processFailuresVersion(); version != adviceVersion_ || isFarewell) {
    adviceVersion_ = version;
    if (std::string text = processFailureBeside(context_.inProcess(), isFarewell).substr(0, kMaxText);
        text != advice_) {
      advice_ = std::move(text);
      std::for_each(waiting_.begin(), waiting_.end(), [](Waiting& each) { each.adviceDue = true; });
    }
  }
  for (const Rank peer : links_.joined()) {  // the other peers get the advice when joined
    bool& due = waiting_[static_cast<std::size_t>(peer)].adviceDue;
    due = due && !context_.sendControl(peer, AdviceFrame{}, bytesOf(advice_));
  }
}

}  // namespace shardwire::internal
