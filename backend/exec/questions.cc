// Ranks that disagree mostly notice the disagreement by the received frames. Where each rank waits for frames of the
// other rank no frames come, or frames come after the operation is over. So:
//   1. After waiting for 100 ms a rank sends the peers the operation in which the rank waits. A peer that is, was or
//      will be in another operation of the same number answers with a desync; a peer without a call so far keeps the
//      question. An answer that finds no room is sent by a later look, as the state is then.
//   2. A peer reports a finished operation. If no more frames come from the peer then, the ranks disagree about sizes.
//   3. Shortly before an operation expires the peers are asked for their current activity, and the error contains the
//      answers. An answer names the ranks for which the peer waits itself, and these ranks are asked, too: so the error
//      names the rank at the end of the chain, which holds all others up.
//   4. A process that failed in another group because a rank died reports this in all groups of the process. A rank
//      that waits for the process, and learns that the process has nothing in flight here, gives up after a while and
//      names the cause.
#include "backend/exec/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/exec/process_failures.h"

namespace shardwire::internal {

namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(20);
constexpr Duration kAskAfter = std::chrono::milliseconds(100);
// A peer sends the last frames of an operation before saying that the operation is over; over a wire the frames may be
// under way for some time.
constexpr Duration kTakesLastFramesWithin = std::chrono::seconds(2);
constexpr Duration kAskAgainAfter = std::chrono::seconds(1);
constexpr std::size_t kMaxText = 2 << 10;
// A peer asks about one operation at a time, and shortly before an expiry about a few.
constexpr std::size_t kMostDue = 8;
}  // namespace

Questions::Questions(RunContext& context, Operations& operations, PeerLinks& links, Duration grace)
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
    sendDueAnswers(peer);
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
  // Staged bytes arrive in the order of the operations, and over a slow network long after the answer.
  const auto next = readFrame<StagedFrame>(context_.connection(peer).peek(Lane::kBulk));
  const bool hasTakenAll = static_cast<std::int32_t>(context_.bulkFramesOf(peer).taken - known.overFrames) >= 0;
  if (next.has_value() ? next->operation.seq > activity.seq
                       : hasTakenAll && now - known.overSince >= kTakesLastFramesWithin) {
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

// ---- the rank that is asked

void Questions::onAsk(Rank from, const Received<AskFrame>& ask, std::span<const std::byte> bytes) {
  const OperationTag& about = ask.operation;
  // A question about an operation to come is kept until the call, unless the peer wants an answer now.
  if (about.seq != 0 && (about.seq < operations_.nextSeq() || ask.wantsAnswer == 0)) {
    if (!operations_.isForNow(from, about, bytes)) {
      return;
    }
    if (const Activity* const activity = operations_.find(about.seq); activity != nullptr) {
      const EdgeBytes mine = activity->edgeBytes(from);
      if (mine.sends != ask.receives || mine.receives != ask.sends) {
        context_.desync(from, about.seq);  // the same call with other sizes
        return;
      }
      if (ask.wantsAnswer == 0) {
        return;
      }
    }
  }
  // In the order of the questions: of two answers "over" the peer keeps the later one.
  std::vector<OperationTag>& due = waiting_[static_cast<std::size_t>(from)].dueAnswers;
  std::erase_if(due, [&](const OperationTag& each) { return each.seq == about.seq; });
  if (due.size() < kMostDue) {
    due.push_back(about);
  }
  sendDueAnswers(from);
}

bool Questions::answer(Rank to, const OperationTag& about) {
  const bool isCalled = about.seq != 0 && about.seq < operations_.nextSeq();
  if (isCalled && operations_.isOther(about)) {  // called after the question came
    return context_.desync(to, about.seq);
  }
  const bool isOver = isCalled && operations_.find(about.seq) == nullptr;
  if (isOver && operations_.isGivenUp(about)) {
    return operations_.sendGivenUp(to, about);
  }
  const bool isUncalled = about.seq == 0 ? operations_.inFlight().empty() : !isCalled;
  const std::vector<Rank> awaited = operations_.awaited(kMostAwaited);
  const AnswerFrame frame{.seq = about.seq,
                          .state = isOver       ? AskedState::kOver
                                   : isUncalled ? AskedState::kNotCalled
                                                : AskedState::kInFlight,
                          .numInFlight = static_cast<std::uint32_t>(operations_.inFlight().size()),
                          .numAwaited = static_cast<std::uint32_t>(awaited.size()),
                          .bulkFrames = context_.bulkFramesOf(to).sent};
  const std::string text = isOver ? std::string(kOver) : activity().substr(0, kMaxText);
  return context_.sendText(to, frame, std::string(textOf(std::as_bytes(std::span(awaited)))).append(text));
}

// A receive from any rank waits on when a peer is gone, and perhaps that peer should have sent the message.
std::string Questions::activity() const {
  std::string text = operations_.describeNow();
  if (!operations_.inFlight().empty() && operations_.inFlight().front()->needsSomePeer()) {
    for (const Rank peer : links_.gone()) {
      text += fmt::format("; {}", links_.whyGone(peer).message());
    }
  }
  return text;
}

void Questions::sendDueAnswers(Rank peer) {
  std::vector<OperationTag>& due = waiting_[static_cast<std::size_t>(peer)].dueAnswers;
  bool hasRoom = true;
  std::erase_if(due, [&](const OperationTag& about) {
    hasRoom = hasRoom && (links_.isGone(peer) || answer(peer, about));
    return hasRoom;
  });
}

// ---- the rank that asked

Status Questions::onAnswer(Rank from, const Received<AnswerFrame>& frame) {
  Waiting& known = waiting_[static_cast<std::size_t>(from)];
  auto awaited = awaitedIn(frame, context_.worldSize);
  if (!awaited.has_value()) {
    return {StatusCode::kInternal,
            fmt::format("rank {} waits for a rank that is not in the group of {} ranks", from, context_.worldSize)};
  }
  const auto now = Clock::now();
  if (frame.state == AskedState::kOver) {
    if (known.overSeq != frame.seq) {
      known.overSeq = frame.seq;
      known.overSince = now;
      known.overFrames = frame.bulkFrames;
    }
    return Status::ok();
  }
  known.answer = std::string(textOf(frame.payload.subspan(frame.awaitedBytes())));
  known.awaited = std::move(*awaited);
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
  return Status::ok();
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
  sendDueAdvice();
}

bool Questions::isAdviceDue() const {
  return !advice_.empty() && std::ranges::any_of(links_.joined(), [this](Rank peer) {
    return !links_.isGone(peer) && waiting_[static_cast<std::size_t>(peer)].adviceDue;
  });
}

void Questions::sendDueAdvice() {
  for (const Rank peer : links_.joined()) {  // the other peers get the advice when joined
    bool& due = waiting_[static_cast<std::size_t>(peer)].adviceDue;
    due = due && !context_.sendControl(peer, AdviceFrame{}, bytesOf(advice_));
  }
}

}  // namespace shardwire::internal
