// Checks made during every wait of the bootstrap: whether this rank was interrupted, whether another rank gave up, and
// whether a rank died. Also how all ranks agree on one reason when the group is not made. One thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend/base/interruptible_wait.h"
#include "backend/base/wait_limit.h"
#include "backend/bootstrap/failure_board.h"
#include "backend/bootstrap/gathering.h"
#include "backend/bootstrap/liveness.h"

namespace shardwire::internal {

class Lookout {
 public:
  // The interval between two checks.
  static constexpr Duration kLookEvery = std::chrono::milliseconds(200);
  // The number of ranks that one rank watches at a time: of the ranks not joined yet, rank 0 first, then the next ranks
  // after this one. So every rank is watched by some other rank, however many ranks there are.
  static constexpr int kMostWatched = 64;

  explicit Lookout(Gathering& group)
      : group_(group), board_(group.store), interruptible_(group.deadline), nextLook_(group.start + kLookEvery) {}
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  // The limit for every wait: with this limit the wait calls look().
  WaitLimit limit() const { return {group_.deadline, &look_}; }
  // Not ok once the making of the group has ended; the result stays the same from then on.
  Status look();
  const Status& ended() const { return ended_; }
  // Whether the making of the group has to begin again, since the attempt found in the store was an earlier one
  // (store_attempts.h).
  bool isOutdated() const { return isOutdated_; }
  // An interrupted rank gives up, whatever the called function made of the interrupt.
  bool isInterrupted() const { return numInterrupts() != interruptsBefore_; }

  // Ends the watch of the peer.
  void joined(Rank peer);
  // See LifeWatch.
  bool refuses(Rank peer) const { return lifeWatch_ != nullptr && lifeWatch_->refuses(peer); }

  // Writes for the other ranks why this rank could not make the group, and returns the first failure, which all ranks
  // report.
  Status agreeOnFailure(const Status& why);

 private:
  LifeWatch& lifeWatch();
  Status twoFirstRanksError() const;
  std::optional<Status> readFailure();
  void passOn(const Status& failure);
  std::optional<Rank> deadRank();
  bool isFirstDead();
  Status whyAbsent() const;
  void noteAwaited();
  std::string whomTheyAwait();
  Status diedError(Rank rank) const;
  Status firstFailure(const Status& mine);
  Status verdictOn(std::optional<Rank> dead, const Status& mine) const;

  Gathering& group_;
  FailureBoard board_;
  const std::uint64_t interruptsBefore_ = numInterrupts();
  InterruptibleWait interruptible_;
  const WaitLimit::Look look_ = [this] { return look(); };
  Deadline nextLook_;
  Status ended_;                   // the result of look() once the making has ended
  std::optional<Rank> foundDead_;  // the death that ended the making of the group
  bool isOutdated_ = false;
  // The peer in a handshake with this rank as of the last look, since when, and whether the store has a note of it.
  Rank awaited_ = -1;
  Deadline awaitedSince_{};
  bool isNoted_ = false;
  std::unique_ptr<LifeWatch> lifeWatch_;  // null: nobody was watched so far
};

}  // namespace shardwire::internal
