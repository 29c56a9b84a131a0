#include "backend/bootstrap/lookout.h"

#include <fmt/format.h>

#include "backend/bootstrap/roster.h"

namespace shardwire::internal {
namespace {

// A peer that hung up knows the reason better, and is about to write it. The peer may also be dead, which shows a little later than its
// sockets do.
constexpr Duration kReasonWithin = std::chrono::seconds(1);
// How long a text that a rank wrote to the store just before it left may take to get there.
constexpr Duration kWrittenWithin = std::chrono::milliseconds(200);
constexpr Duration kPause = std::chrono::milliseconds(20);

}  // namespace

// Called again and again while this rank waits, whatever for.
Status Lookout::look() {
  if (ended_.isOk() && (interruptible_.isInterrupted() || isInterrupted())) {
    ended_ = interruptedStatus("making the group");
  }
  if (!ended_.isOk() || Clock::now() < nextLook_) {
    return ended_;
  }
  nextLook_ = Clock::now() + kLookEvery;
  if (!group_.knowsAll && internal::isOutdated(group_.whole, group_.attempt)) {
    isOutdated_ = true;
    ended_ = Status{StatusCode::kAborted, "the job was started anew"};
  } else if (!group_.attempt.isSure) {
    return ended_;
  } else if (const auto failure = board_.read()) {
    ended_ = *failure;
  } else if (const auto dead = deadRank()) {
    ended_ = diedError(*dead);
  }
  return ended_;
}

// Ranks that are joined to this one are not looked at: they may have finished, and exited normally. Rank 0 comes first: when the store ends
// with rank 0, the other ranks end too, and cannot say why.
std::optional<Rank> Lookout::deadRank() {
  if (!lifeWatch_) {
    const auto all = group_.own.fabric == nullptr ? Result<std::vector<InterfaceAddress>>(std::vector<InterfaceAddress>())
                                                  : group_.own.fabric->interfaces(networkNamespace());
    lifeWatch_.emplace(group_.own.address,
                       all.isOk() ? chooseInterfaces(*all, group_.peers.options->socketIfname) : std::vector<InterfaceAddress>());
  }
  int numWatched = 0;
  for (Rank i = 0; i < group_.worldSize && numWatched < kMostWatched; ++i) {
    const Rank rank = i == 0 ? 0 : (group_.rank + i) % group_.worldSize;
    if (rank == group_.rank || rank == group_.busyWith || (rank == 0 && i != 0) || !group_.isRead[Gathering::index(rank)] ||
        group_.isJoined(rank)) {
      continue;
    }
    ++numWatched;
    // A rank that finished its side of every handshake may exit normally; check for that before reporting it dead. A rank that joins its
    // peers later has only to read their addresses; this rank knows from all addresses what the other has yet to do with it.
    const auto hasFinished = [&] {
      const auto met = group_.isMet(rank);
      if (!met.isOk() || *met) {
        return true;
      }
      // The peer's half of a pair that this rank joins at once comes later, from the peer's engine: the pair's own health says whether the
      // peer died.
      return group_.addressOf(rank).joinsLate && (group_.isAttached(rank) || (!group_.knowsAll && isAllPublished(group_)));
    };
    if (lifeWatch_->isDead(rank, group_.addressOf(rank)) && !hasFinished()) {
      return rank;
    }
  }
  return std::nullopt;
}

Status Lookout::diedError(Rank rank) const {
  return {StatusCode::kPeerFailed,
          fmt::format("{} died while the group was being made (or an earlier job left its address in the store)", group_.nameOf(rank))};
}

void Lookout::joined(Rank peer) {
  if (lifeWatch_) {
    lifeWatch_->forget(peer);
  }
}

Status Lookout::agreeOnFailure(const Status& mine) {
  if (group_.worldSize == 1) {
    return mine;
  }
  if (isInterrupted()) {
    // This rank reports its own interrupt, whatever others failed with: the caller was interrupted and must learn that. The others learn
    // that this rank gave up.
    const NoInterrupts writing;
    board_.write({StatusCode::kAborted, fmt::format("rank {} gave up: {}", group_.rank, mine.message())});
    return mine.code() == StatusCode::kInterrupted ? mine : Status{StatusCode::kInterrupted, mine.message()};
  }
  if (!group_.attempt.isSure) {
    board_.write(mine);  // the failure in the store may be an earlier attempt's
    return mine;
  }
  // A rank often sees only a consequence of another's end: a socket that closed, a store that ended with its owner. A store that was silent
  // until the deadline has nothing more to say.
  const bool isEnd = mine.code() == StatusCode::kPeerFailed || (group_.storeFailed && mine.code() != StatusCode::kTimeout);
  const bool isMaybeEnd = group_.busyWith >= 0 && (mine.code() == StatusCode::kUnsupported || mine.code() == StatusCode::kSystem);
  const Deadline start = Clock::now();
  const Duration patience = isEnd ? kReasonWithin : isMaybeEnd ? kWrittenWithin : Duration::zero();
  group_.busyWith = -1;  // that handshake is over, one way or the other
  while (true) {
    if (const auto failure = board_.read()) {
      return *failure;
    }
    const std::optional<Rank> dead = isEnd || isMaybeEnd ? deadRank() : std::nullopt;
    const Duration waited = Clock::now() - start;
    if (waited >= patience || (dead && waited >= kWrittenWithin)) {
      // Read once more: a rank that seems dead may have written its reason, and left, since this rank last read the board.
      if (const auto failure = board_.read()) {
        return *failure;
      }
      const Status verdict = dead ? diedError(*dead) : mine;
      board_.write(verdict);
      return verdict;
    }
    static_cast<void>(WaitLimit(Clock::now() + kPause).poll({}).status());
  }
}

}  // namespace shardwire::internal
