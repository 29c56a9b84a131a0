// The error of an operation that expires. askBeforeExpiry() asks the needed peers, then the peers that keep an older
// operation of this rank waiting, and then the ranks that the answers name (chainOf). Each look asks the ranks that are
// new in the chain, so the chain grows by one link with each answer. answersAbout() has the answers of all ranks of the
// chain, and the ranks without an answer, for the text of the error. A warning about an operation that waits long asks
// the same questions, and then forgets the answers: the operation may go on for any time.
#include <fmt/format.h>

#include <algorithm>

#include "backend/bootstrap/summary.h"
#include "backend/exec/questions.h"

namespace shardwire::internal {

namespace {

// Between two questions to a peer without an answer for the error of an operation that expires.
constexpr Duration kAskForErrorEvery = std::chrono::milliseconds(200);
// A rank asked because of another rank's answer may be asked shortly before the error: the rank counts as silent
// only after this time, or after a quarter of the notice.
constexpr Duration kAnswersWithin = std::chrono::milliseconds(100);
// Ranks asked because of other ranks' answers.
constexpr std::size_t kMostFollowed = 32;
// Of more followed ranks the error has the nearest ranks, and of the others those that wait for no rank.
constexpr std::size_t kMostShown = 8;
constexpr std::size_t kNearest = 3;

Duration noticeOf(const Activity& activity) {
  return std::min<Duration>(Questions::kLongestNotice, activity.timeout / 5);
}

}  // namespace

// This machine may have been busy with other work when the time to ask came: then the operation expires later by this
// delay.
void Questions::askBeforeExpiry(Activity& activity, Clock::time_point now) {
  const Duration notice = noticeOf(activity);
  if (activity.mayLapse() || now < activity.deadline - notice) {  // of a lapse no error will contain the answers
    return;
  }
  if (activity.askedPeersAt == Clock::time_point{}) {
    activity.askedPeersAt = now;
    activity.deadline = std::max(activity.deadline, now + notice);
    if (activity.needsSomePeer()) {
      links_.wantAll();  // a recv from any rank needs no link of this rank's making, but learns of dead ranks by one
    }
  }
  askChain(activity, now);
}

bool Questions::askBeforeNotice(Activity& activity, Clock::time_point due, Clock::time_point now) {
  const Duration notice = std::min(noticeOf(activity), activity.noticeAfter / 2);
  if (now < due - notice) {
    return false;
  }
  if (activity.askedPeersAt == Clock::time_point{}) {
    activity.askedPeersAt = now;
  }
  askChain(activity, now);
  return now >= activity.askedPeersAt + notice;
}

void Questions::forgetAnswers(Activity& activity) {
  activity.askedPeersAt = {};
  for (Waiting& known : waiting_) {
    known.answeredSeq = known.answeredSeq == activity.seq ? 0 : known.answeredSeq;
  }
}

void Questions::askChain(const Activity& activity, Clock::time_point now) {
  const Chain chain = chainOf(activity);
  for (std::size_t i = 0; i < chain.ranks.size(); ++i) {
    const bool isDirect = i < chain.numDirect;
    Waiting& known = waiting_[static_cast<std::size_t>(chain.ranks[i])];
    // Without room in the lane the question goes with the next look.
    if (answerAbout(activity, known, isDirect).empty() && now - known.askedForErrorAt >= kAskForErrorEvery &&
        askForError(chain.ranks[i], activity, isDirect)) {
      known.askedForErrorAt = now;
      if (known.firstAskedForErrorAt < activity.askedPeersAt) {
        known.firstAskedForErrorAt = now;
      }
    }
  }
}

// A rank that follows in the chain may take no part in the operation.
bool Questions::askForError(Rank peer, const Activity& activity, bool isDirect) {
  return isDirect ? ask(peer, activity, true) : context_.sendControl(peer, AskFrame{.wantsAnswer = 1});
}

Questions::Chain Questions::chainOf(const Activity& activity) const {
  Chain chain;
  std::vector<bool> isIn(waiting_.size());
  isIn[static_cast<std::size_t>(context_.rank)] = true;
  const auto add = [&](Rank peer) {
    if (!isIn[static_cast<std::size_t>(peer)] && chain.ranks.size() < chain.numDirect + kMostFollowed) {
      isIn[static_cast<std::size_t>(peer)] = true;
      chain.ranks.push_back(peer);
    }
  };
  for (Rank peer = 0; peer < context_.worldSize; ++peer) {
    if (peer != context_.rank && (activity.needs(peer) || activity.needsSomePeer())) {
      ++chain.numDirect;
      add(peer);
    }
  }
  const Activity* const earlier = operations_.earlierThan(activity);
  for (Rank peer = 0; earlier != nullptr && peer < context_.worldSize; ++peer) {
    if (earlier->needs(peer)) {
      add(peer);
    }
  }
  for (std::size_t i = 0; i < chain.ranks.size(); ++i) {
    const Waiting& known = waiting_[static_cast<std::size_t>(chain.ranks[i])];
    if (const auto answer = answerAbout(activity, known, i < chain.numDirect); !answer.empty() && answer != kOver) {
      std::ranges::for_each(known.awaited, add);
    }
  }
  return chain;
}

// Several operations often expire at the same time. A later answer about another operation states the peer's activity
// as well.
std::string_view Questions::answerAbout(const Activity& activity, const Waiting& known, bool isDirect) const {
  if (isDirect && activity.ordered() && known.overSeq == activity.seq) {
    return kOver;
  }
  const bool isAbout = isDirect && activity.ordered() && known.answeredSeq == activity.seq;
  return isAbout || known.answeredAt >= activity.askedPeersAt ? known.answer : std::string_view();
}

bool Questions::hadTime(const Activity& activity, const Waiting& known) const {
  return known.askedForErrorAt >= activity.askedPeersAt &&
         Clock::now() - known.firstAskedForErrorAt >= std::min<Duration>(kAnswersWithin, noticeOf(activity) / 4);
}

std::string Questions::answersAbout(const Activity& activity) const {
  std::string text;
  std::vector<Rank> silent;
  std::vector<Rank> unasked;
  if (activity.askedPeersAt == Clock::time_point{}) {
    return text;
  }
  const Chain chain = chainOf(activity);
  const std::size_t numFollowed = chain.ranks.size() - chain.numDirect;
  const std::size_t numShown = chain.numDirect + (numFollowed <= kMostShown ? kMostShown : kNearest);
  for (std::size_t i = 0; i < chain.ranks.size(); ++i) {
    const bool isDirect = i < chain.numDirect;
    const Rank peer = chain.ranks[i];
    const Waiting& known = waiting_[static_cast<std::size_t>(peer)];
    if (links_.isGone(peer)) {  // a recv from any rank waits on for the other ranks
      text += fmt::format("; {}", links_.whyGone(peer).message());
    } else if (const std::string_view answer = answerAbout(activity, known, isDirect); answer.empty()) {
      (isDirect || hadTime(activity, known) ? silent : unasked).push_back(peer);
    } else if (i < numShown || known.awaited.empty()) {
      text += fmt::format("; rank {} {}", peer, answer);
      if (!known.advice.empty()) {
        text += fmt::format(" (another group of its process failed: {})", known.advice);
      }
    }
  }
  text += silent.empty() ? "" : fmt::format("; {} gave no answer", rankList(silent));
  text += unasked.empty() ? "" : fmt::format("; {} could not be asked in time", rankList(unasked));
  return text;
}

}  // namespace shardwire::internal
