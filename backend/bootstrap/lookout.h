// What a rank looks at while it waits for others, whatever it waits for: whether it was interrupted, whether another rank gave up, and
// whether one died. And how all ranks come to one reason when the group is not made. One thread.
#pragma once

#include <optional>

#include "backend/base/interrupt.h"
#include "backend/base/wait_limit.h"
#include "backend/bootstrap/failure_board.h"
#include "backend/bootstrap/gathering.h"
#include "backend/bootstrap/liveness.h"

namespace shardwire::internal {

class Lookout {
 public:
  // How often it looks.
  static constexpr Duration kLookEvery = std::chrono::milliseconds(200);
  // Ranks that one rank watches at a time: those that it waits for, next after itself first. So each is watched by somebody, however many
  // there are.
  static constexpr int kMostWatched = 64;

  explicit Lookout(Gathering& group)
      : group_(group), board_(group.store), interruptible_(group.deadline), nextLook_(group.start + kLookEvery) {}
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  // Whatever waits takes this limit, so that this rank looks around while it waits.
  WaitLimit limit() const { return {group_.deadline, &look_}; }
  // Not ok once somebody ended the group; stays so.
  Status look();
  const Status& ended() const { return ended_; }
  // Whether the making of the group has to begin again, since the store's attempt was an earlier one (store_attempts.h).
  bool isOutdated() const { return isOutdated_; }
  // Whoever was interrupted gives up, however its callee took that.
  bool isInterrupted() const { return numInterrupts() != interruptsBefore_; }

  // Needs no watching any more.
  void joined(Rank peer);
  // See LifeWatch.
  bool refuses(Rank peer) const { return lifeWatch_.has_value() && lifeWatch_->refuses(peer); }

  // Tells the others why this rank could not make the group, and returns what all ranks report: the first failure.
  Status agreeOnFailure(const Status& mine);

 private:
  std::optional<Rank> deadRank();
  Status diedError(Rank rank) const;

  Gathering& group_;
  FailureBoard board_;
  const std::uint64_t interruptsBefore_ = numInterrupts();
  InterruptibleWait interruptible_;
  const WaitLimit::Look look_ = [this] { return look(); };
  Deadline nextLook_;
  Status ended_;  // what look() found, once it did
  bool isOutdated_ = false;
  std::optional<LifeWatch> lifeWatch_;
};

}  // namespace shardwire::internal
