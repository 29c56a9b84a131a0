// look() is called again and again while the group is made. Five times per second look() checks, in this order: whether
// the job was started anew, whether another rank wrote a failure to the board, whether another process has taken this
// rank's number, whether a rank with a published address died (LifeWatch), and whether another group of this process
// knows that a rank without an address is gone. The first finding ends the making of the group, and stays.
// agreeOnFailure() writes this rank's reason for the others, and waits until all ranks report one reason. A rank in a
// long handshake notes the peer in the store: the errors of ranks waiting for this rank name the peer, too
// (whomTheyAwait).
#include "backend/bootstrap/lookout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>
#include <vector>

#include "backend/bootstrap/read_addresses.h"
#include "backend/bootstrap/roster.h"

namespace shardwire::internal {
namespace {

// A peer that hung up knows the reason better, and is about to write the reason. The peer may also be dead: the death
// shows a little later than the end of the sockets.
constexpr Duration kReasonWithin = std::chrono::seconds(1);
// The longest time for a text to reach the store, if a rank wrote the text just before exiting.
constexpr Duration kWrittenWithin = std::chrono::milliseconds(200);
constexpr Duration kPause = std::chrono::milliseconds(20);
// A longer handshake is noted in the store.
constexpr Duration kNotesAfter = std::chrono::milliseconds(500);
// The ranks about which one rank asks for its error.
constexpr std::size_t kMostAsked = 16;

std::string awaitedKey(Rank rank) {
  return addressKey(rank) + "/awaits";
}

}  // namespace

// Called again and again during every wait of this rank. After the deadline the other ranks have given up, and seem
// dead: a store may have answered so late.
Status Lookout::look() {
  if (ended_.isOk() && (interruptible_.isInterrupted() || isInterrupted())) {
    ended_ = interruptedStatus("making the group");
  }
  if (!ended_.isOk() || Clock::now() < nextLook_) {
    return ended_;
  }
  nextLook_ = Clock::now() + kLookEvery;
  if (!group_.knowsAll && internal::isOutdated(group_.whole, group_.attempt)) {
    // Rank 0 names an attempt once: two processes would take turns, and each would seem to die again and again.
    isOutdated_ = group_.rank != 0;
    ended_ = isOutdated_ ? Status{StatusCode::kAborted, "the job was started anew"} : twoFirstRanksError();
  } else if (const auto failure = readFailure()) {
    ended_ = *failure;
  } else if (const Status own = group_.knowsAll ? Status::ok() : checkStillOwn(group_); !own.isOk()) {
    ended_ = own;
  } else if (const auto dead = deadRank(); dead && Clock::now() < group_.deadline) {
    foundDead_ = dead;
    ended_ = diedError(*dead);
  } else {
    ended_ = whyAbsent();
  }
  if (ended_.isOk()) {
    noteAwaited();
  }
  return ended_;
}

Status Lookout::twoFirstRanksError() const {
  return {
      StatusCode::kMismatch,
      fmt::format("two processes call themselves rank 0: pid {} on host {}, and one that began later (or the job was "
                  "started anew while this process lived)",
                  group_.own.address.pid, group_.own.address.host)};
}

// A rank that is not sure of the attempt takes only a failure that was written for the rank's process: the board's may
// be an earlier attempt's.
std::optional<Status> Lookout::readFailure() {
  return group_.attempt.isSure ? board_.read() : FailureBoard(group_.store, group_.own.address.process).read();
}

// Rank 0 is always sure of the attempt, and repeats the failure for the process of each rank that has arrived: ranks of
// other hosts may be unsure.
void Lookout::passOn(const Status& failure) {
  for (Rank rank = 1; group_.rank == 0 && !group_.attempt.process.isZero() && rank < group_.worldSize; ++rank) {
    const auto bytes = askStore(group_, addressKey(rank));
    if (!bytes.isOk()) {
      return;
    }
    if (const auto address = decodeAddress(bytes->value_or("")); address.isOk()) {
      FailureBoard(group_.store, address->process).write(failure);
    }
  }
}

// Ranks may wait for this rank while this rank waits for another rank: their errors name the other rank, too.
void Lookout::noteAwaited() {
  const auto now = Clock::now();
  const auto write = [&](const std::string& value) { (void)group_.store.set(awaitedKey(group_.rank), value); };
  if (group_.busyWith != awaited_) {
    if (std::exchange(isNoted_, false)) {
      write("");
    }
    awaited_ = group_.busyWith;
    awaitedSince_ = now;
  } else if (awaited_ >= 0 && !isNoted_ && now - awaitedSince_ >= kNotesAfter) {
    isNoted_ = true;
    write(fmt::format("{}", awaited_));
  }
}

// For the error of a timeout: "; rank 3 waits for rank 2 (pid 12 on host b)".
std::string Lookout::whomTheyAwait() {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < group_.worldSize && ranks.size() < kMostAsked; ++rank) {
    if (rank != group_.rank && !group_.isJoined(rank)) {
      ranks.push_back(rank);
    }
  }
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < kMostAsked; ++i) {
    const auto note = group_.store.get(awaitedKey(ranks[i]), Clock::now());
    Rank next = -1;
    if (note.isOk() && std::from_chars(note->data(), note->data() + note->size(), next).ec == std::errc() &&
        next >= 0 && next < group_.worldSize && next != group_.rank) {
      text += fmt::format("; rank {} waits for {}", ranks[i], group_.nameOf(next));
      if (std::ranges::find(ranks, next) == ranks.end()) {
        ranks.push_back(next);
      }
    }
  }
  return text;
}

// A rank without a published address has no sign of life here. Another group of this process may know that the rank
// died.
Status Lookout::whyAbsent() const {
  const auto& statusOf = group_.peers.options->statusOfAbsent;
  for (Rank rank = 0; statusOf != nullptr && rank < group_.worldSize; ++rank) {
    const Status known = rank == group_.rank || group_.isRead[Gathering::index(rank)] ? Status::ok() : statusOf(rank);
    if (!known.isOk()) {
      return {known.code(), fmt::format("rank {} cannot arrive: {}", rank, known.message())};
    }
  }
  return Status::ok();
}

LifeWatch& Lookout::lifeWatch() {
  if (lifeWatch_ == nullptr) {
    lifeWatch_ = group_.machine.watch(group_.own, *group_.peers.options);
  }
  return *lifeWatch_;
}

// For a rank that is not sure of the attempt: whether rank 0 answered this rank, and is dead now. Rank 0 of an earlier
// attempt had ended before this process began. With a roster in the store, rank 0 may have finished.
bool Lookout::isFirstDead() {
  const auto bytes = askStore(group_, addressKey(0));
  auto first = decodeAddress(bytes.isOk() ? bytes->value_or("") : "");
  if (!first.isOk() || !first->failure.isOk()) {
    return false;
  }
  group_.addresses.front() = std::move(*first);
  const bool isDead = lifeWatch().isDead(0, group_.addressOf(0));
  return isDead && lifeWatch().hasAnswered(0) && !isAllPublished(group_);
}

// Ranks already joined to this rank are not checked: such ranks may have finished, and exited normally. Rank 0 comes
// first: when the store ends with rank 0, the other ranks end too, and cannot say why.
std::optional<Rank> Lookout::deadRank() {
  if (!group_.attempt.isSure) {
    return isFirstDead() ? std::optional<Rank>(0) : std::nullopt;
  }
  int numWatched = 0;
  for (Rank i = 0; i < group_.worldSize && numWatched < kMostWatched; ++i) {
    const Rank rank = i == 0 ? 0 : (group_.rank + i) % group_.worldSize;
    if (rank == group_.rank || rank == group_.busyWith || (rank == 0 && i != 0) ||
        !group_.isRead[Gathering::index(rank)] || group_.isJoined(rank)) {
      continue;
    }
    ++numWatched;
    // A rank that finished its side of every handshake may exit normally; check for that before reporting it dead. A
    // rank that joins peers later has only to read the addresses. From all addresses this rank knows which steps the
    // other rank still has to take with this rank.
    const auto hasFinished = [&] {
      const auto met = group_.isMet(rank);
      if (!met.isOk() || *met) {
        return true;
      }
      // If this rank joins the pair at once and the peer later, the peer attaches from its engine, unless the two need
      // a link: the connection's own health check reports the death of the peer.
      return group_.addressOf(rank).joinsLate &&
             (group_.knowsAll ? !group_.needsLink[Gathering::index(rank)] : isAllPublished(group_));
    };
    if (lifeWatch().isDead(rank, group_.addressOf(rank)) && !hasFinished()) {
      return rank;
    }
  }
  return std::nullopt;
}

Status Lookout::diedError(Rank rank) const {
  return {StatusCode::kPeerFailed,
          fmt::format("{} died while the group was being made (or an earlier job left its address in the store)",
                      group_.nameOf(rank))};
}

void Lookout::joined(Rank peer) {
  if (lifeWatch_ != nullptr) {
    lifeWatch_->forget(peer);
  }
}

// Where the store does not answer, the reason of another rank may be missing.
Status Lookout::verdictOn(std::optional<Rank> dead, const Status& mine) const {
  const Status verdict = dead ? diedError(*dead) : mine;
  const Status& unread = board_.whyUnread();
  return unread.isOk() || group_.storeFailed
             ? verdict
             : Status{verdict.code(), fmt::format("{}; the reasons of other ranks could not be read: {}",
                                                  verdict.message(), unread.message())};
}

Status Lookout::agreeOnFailure(const Status& why) {
  if (group_.worldSize == 1) {
    return why;
  }
  const bool isLate = why.code() == StatusCode::kTimeout && group_.knowsAll && !group_.storeFailed;
  const Status mine = isLate ? Status{why.code(), why.message() + whomTheyAwait()} : why;
  if (isInterrupted()) {
    // An interrupted rank reports the interrupt, whatever failed on other ranks: the caller was interrupted and must
    // learn of the interrupt. The other ranks learn that this rank gave up.
    const NoInterrupts writing;
    const Status gaveUp{StatusCode::kAborted, fmt::format("rank {} gave up: {}", group_.rank, mine.message())};
    board_.write(gaveUp);
    passOn(gaveUp);
    return mine.code() == StatusCode::kInterrupted ? mine : Status{StatusCode::kInterrupted, mine.message()};
  }
  // The other ranks were joined to the other process: what this process saw of them is a consequence.
  const Status own = checkStillOwn(group_);
  if (!own.isOk()) {
    board_.write(own);
  }
  const Status first = own.isOk() ? firstFailure(mine) : own;
  passOn(first);
  return first;
}

Status Lookout::firstFailure(const Status& mine) {
  if (!group_.attempt.isSure) {
    if (const auto failure = readFailure()) {
      return *failure;
    }
    // Rank 0 knows better which ranks are missing. Any other failure replaces the one in the store, which may be an
    // earlier attempt's.
    if (mine.code() != StatusCode::kTimeout) {
      board_.write(mine);
    }
    return mine;
  }
  // A rank often sees only a consequence of another rank's end: a closed socket, or a store that ended with the rank. A
  // store without an answer until the deadline will give no better reason.
  const bool isEnd =
      mine.code() == StatusCode::kPeerFailed || (group_.storeFailed && mine.code() != StatusCode::kTimeout);
  const bool isMaybeEnd =
      group_.busyWith >= 0 && (mine.code() == StatusCode::kUnsupported || mine.code() == StatusCode::kSystem);
  const Deadline start = Clock::now();
  const Duration patience = isEnd ? kReasonWithin : isMaybeEnd ? kWrittenWithin : Duration::zero();
  group_.busyWith = -1;  // the handshake has ended, with or without success
  while (true) {
    if (const auto failure = board_.read()) {
      return *failure;
    }
    // Ranks that have ended since may be a consequence of the first death.
    const std::optional<Rank> dead = foundDead_.has_value() ? foundDead_
                                     : isEnd || isMaybeEnd  ? deadRank()
                                                            : std::nullopt;
    const Duration waited = Clock::now() - start;
    if (waited >= patience || (dead && waited >= kWrittenWithin)) {
      // Read once more: a rank that seems dead may have written the reason, and exited, since this rank last read the
      // board.
      if (const auto failure = board_.read()) {
        return *failure;
      }
      const Status verdict = verdictOn(dead, mine);
      board_.write(verdict);
      return verdict;
    }
    static_cast<void>(WaitLimit(Clock::now() + kPause).poll({}).status());
  }
}

}  // namespace shardwire::internal
