// What a rank looks at while it waits for others, whatever it waits for: whether it was interrupted, whether another rank gave up, and
// whether a rank died. Also how all ranks come to one reason when the group is not made. One thread.
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
  // The number of ranks that one rank watches at a time: those that it waits for, the next after itself first. So every rank is watched by
  // some other, however many there are.
  static constexpr int kMostWatched = 64;

  explicit Lookout(Gathering& group)
      : group_(group), board_(group.store), interruptible_(group.deadline), nextLook_(group.start + kLookEvery) {}
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  // The limit for every wait, so that this rank calls look() while it waits.
  WaitLimit limit() const { return {group_.deadline, &look_}; }
  // Not ok once the making of the group has ended; stays so.
  Status look();
  const Status& ended() const { return ended_; }
  // Whether the making of the group has to begin again, since the store's attempt was an earlier one (store_attempts.h).
  bool isOutdated() const { return isOutdated_; }
  // A rank that was interrupted gives up, whatever the called function made of the interrupt.
  bool isInterrupted() const { return numInterrupts() != interruptsBefore_; }

  // The peer needs no watching any more.
  void joined(Rank peer);
  // See LifeWatch.
  bool refuses(Rank peer) const { return lifeWatch_.has_value() && lifeWatch_->refuses(peer); }

  // Writes for the others why this rank could not make the group, and returns what all ranks report: the first failure.
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
