// The questions of this rank to peers that keep this rank waiting, and the answers to the peers' questions: finds ranks
// that wait for each other in different operations, and ranks whose process gave up in another group. Guarded by the
// group's lock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/exec/operations.h"
#include "backend/exec/peer_links.h"

namespace shardwire::internal {

class Questions {
 public:
  // The longest time from the first question to the expiry of an operation.
  static constexpr Duration kLongestNotice = std::chrono::seconds(1);
  // `grace`: Options::grace.
  Questions(RunContext& context, Operations& operations, PeerLinks& links, Duration grace);

  // ---- The waiting rank
  void look(Clock::time_point now);
  // ---- Errors of operations that expire, and warnings before (expiry_questions.cc)
  // Asks the peers for their current activity shortly before the operation expires, and then the ranks for which these
  // peers wait; answersAbout() returns the answers for the error text.
  void askBeforeExpiry(Activity& activity, Clock::time_point now);
  // The same for a line of log about an operation that waits on, due at `due`. True: the peers had the time to answer.
  bool askBeforeNotice(Activity& activity, Clock::time_point due, Clock::time_point now);
  std::string answersAbout(const Activity& activity) const;
  // The next question about the activity gets new answers.
  void forgetAnswers(Activity& activity);

  Status onAnswer(Rank from, const Received<AnswerFrame>& frame);
  void onAdvice(Rank from, const Received<AdviceFrame>& frame);
  // The reason why another group of the peer's process failed; empty: no group failed.
  const std::string& adviceOf(Rank peer) const { return waiting_[static_cast<std::size_t>(peer)].advice; }

  // ---- The asked rank
  void onAsk(Rank from, const Received<AskFrame>& frame, std::span<const std::byte> bytes);
  // Notifies the peers of a failure in another group of this process. `isFarewell`: this group ends.
  void sendAdvice(bool isFarewell = false);
  // Sends the text of the latest sendAdvice() to the peers that did not get the text, such as peers joined since.
  void sendDueAdvice();
  // Some joined peer has no room for the text.
  bool isAdviceDue() const;
  // The peer was joined just now.
  void addAdviceTo(Rank peer) { waiting_[static_cast<std::size_t>(peer)].adviceDue = !advice_.empty(); }

 private:
  static constexpr std::string_view kOver = "is done with it";

  // The known state of a peer that keeps this rank waiting.
  struct Waiting {
    std::uint64_t askedSeq = 0;  // the latest operation about which this rank asked the peer
    std::uint64_t answeredSeq = 0;
    std::string answer;         // the peer's activity when the question about answeredSeq came
    std::vector<Rank> awaited;  // the ranks for which the peer waited then
    Clock::time_point answeredAt{};
    std::uint64_t overSeq = 0;  // the peer has finished this operation
    Clock::time_point overSince{};
    std::uint32_t overFrames = 0;  // bulk frames that the peer had sent to this rank by then
    std::string advice;            // the reason why another group of the peer's process failed; empty: no group failed
    Clock::time_point advisedAt{};
    Clock::time_point lastAskedAt{};      // when this rank last asked whether the peer comes at all
    Clock::time_point askedForErrorAt{};  // when this rank last asked for the error of an operation that expires
    Clock::time_point firstAskedForErrorAt{};
    bool adviceDue = false;                // this rank's own advice is still to be sent to the peer
    std::vector<OperationTag> dueAnswers;  // the peer's questions whose answers found no room so far
  };
  // The ranks that may keep an activity waiting, without repetitions: the peers needed by the activity, then the peers
  // needed by an older operation of this rank, then the ranks for which the former ranks wait, and so on.
  struct Chain {
    std::vector<Rank> ranks;
    std::size_t numDirect = 0;  // the peers needed by the activity itself
  };

  void askAboutOldest(Rank peer, Clock::time_point now);
  void checkWhetherOver(const Activity& activity, Rank peer, Clock::time_point now);
  void checkWhetherAbsent(const Activity& activity, Rank peer, Clock::time_point now);
  bool ask(Rank peer, const Activity& activity, bool answerNow);
  Chain chainOf(const Activity& activity) const;
  void askChain(const Activity& activity, Clock::time_point now);
  bool askForError(Rank peer, const Activity& activity, bool isDirect);
  // The activity of the peer, for the error of the expiring activity; empty: no answer came.
  std::string_view answerAbout(const Activity& activity, const Waiting& known, bool isDirect) const;
  // Whether the peer had the time to answer.
  bool hadTime(const Activity& activity, const Waiting& known) const;
  std::string activity() const;  // of this rank, for an answer
  // False: the lane has no room now.
  bool answer(Rank to, const OperationTag& about);
  void sendDueAnswers(Rank peer);
  bool isPastGrace(const Activity& activity, const Waiting& known, Clock::time_point now) const;

  RunContext& context_;
  Operations& operations_;
  PeerLinks& links_;
  const Duration grace_;
  std::vector<Waiting> waiting_;     // by peer
  std::uint64_t adviceVersion_ = 0;  // of processFailuresVersion()
  std::string advice_;               // the text known to the peers, or still to be sent
  Clock::time_point lastLook_{};
};

}  // namespace shardwire::internal
