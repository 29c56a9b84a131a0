// How ranks learn each other's addresses from the store. In a small group each rank reads all addresses by itself. In a
// large group the ranks would ask the store n^2 times; so rank 0 reads the addresses and writes all into one entry, the
// roster, which the other ranks read. The other ranks read rank 0's address first, so that they notice rank 0's death,
// and detect a different world size at once. If any other rank fails or dies meanwhile, rank 0 detects this and
// notifies all ranks (Lookout). A roster without this rank's address is an earlier job's, or another process claimed
// this rank: then this rank waits for a newer roster.
#include "backend/bootstrap/read_addresses.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "backend/bootstrap/roster.h"

namespace shardwire::internal {
namespace {

// The pause between two requests to the store for a missing address is a fraction of the time waited so far, so that
// the reader sees an address late by at most this fraction.
constexpr int kPausesPerWait = 8;
constexpr Duration kShortestPause = std::chrono::microseconds(500);
constexpr Duration kShortestPauseOfFew = std::chrono::microseconds(100);
constexpr Duration kLongestPauseAtFirst = std::chrono::milliseconds(20);
constexpr Duration kLongestPause = std::chrono::milliseconds(100);
constexpr Duration kAtFirst = std::chrono::seconds(1);

// Takes the address of a rank from the store or from the roster.
Status takeAddress(Gathering& group, Rank rank, const std::string& bytes) {
  auto address = decodeAddress(bytes);
  if (!address.isOk()) {
    return Status{address.status().code(), fmt::format("rank {}: {}", rank, address.status().message())};
  }
  SW_RETURN_IF_ERROR(address->failure);
  if (rank == group.rank) {
    SW_RETURN_IF_ERROR(checkOwnAddress(rank, group.own.address, group.published, bytes));
  }
  SW_RETURN_IF_ERROR(checkWorldSize(group.rank, group.own.address, rank, *address));
  group.addresses[Gathering::index(rank)] = std::move(*address);
  group.isRead[Gathering::index(rank)] = true;
  return Status::ok();
}

// False: the store has no address of the rank yet.
Result<bool> readAddress(Gathering& group, Rank rank) {
  const auto bytes = askStore(group, addressKey(rank));
  SW_RETURN_IF_ERROR(bytes.status());
  if (!bytes->has_value()) {
    return false;
  }
  SW_RETURN_IF_ERROR(takeAddress(group, rank, **bytes));
  return true;
}

// In the order after this rank, so that not all ranks ask for the same address at once.
std::vector<Rank> unread(const Gathering& group) {
  std::vector<Rank> ranks;
  for (Rank i = 0; i < group.worldSize; ++i) {
    const Rank rank = (group.rank + i) % group.worldSize;
    if (!group.isRead[Gathering::index(rank)]) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

Status readUnread(Gathering& group, int most) {
  for (const Rank rank : unread(group)) {
    if (most-- == 0) {
      break;
    }
    SW_RETURN_IF_ERROR(readAddress(group, rank).status());
  }
  return Status::ok();
}

// The addresses that a rank finds while it is not sure of the attempt may be an earlier attempt's. So such a rank uses
// them only here, for the text of an error that comes in any case.
Status absentError(Gathering& group, Rank awaited) {
  const Status read = readUnread(group, group.worldSize);
  if (!read.isOk() && group.attempt.isSure) {
    return read;
  }
  std::vector<Rank> absent = read.isOk() ? unread(group) : std::vector<Rank>();
  std::sort(absent.begin(), absent.end());
  if (!absent.empty() && group.round > 0) {
    return lateError(group,
                     fmt::format("did not join group {} of this store. A process that took no part in the groups "
                                 "before it cannot join it: use a new store",
                                 group.round + 1),
                     absent);
  }
  return absent.empty() ? lateError(group,
                                    fmt::format("arrived, but wrote no list of ranks in which this process is rank {}",
                                                group.rank),
                                    {awaited})
                        : lateError(group, "did not arrive", absent);
}

class Pause {
 public:
  explicit Pause(const Gathering& group) : group_(group) {}
  void reset() { since_ = Clock::now(); }
  Status wait(Lookout& lookout) {
    const Deadline now = Clock::now();
    const Duration longest = now - group_.start < kAtFirst ? kLongestPauseAtFirst : kLongestPause;
    const Duration shortest = group_.worldSize <= kFewAddresses ? kShortestPauseOfFew : kShortestPause;
    return lookout.limit()
        .sooner(now + std::clamp((now - since_) / kPausesPerWait, shortest, longest))
        .poll({})
        .status();
  }

 private:
  const Gathering& group_;
  Deadline since_ = Clock::now();
};

// Waits for one rank after the other, and now and then looks for the rest, to notice a rank that arrived and died
// meanwhile.
Status readEach(Gathering& group, Lookout& lookout, int most) {
  Pause pause(group);
  Deadline nextRound{};
  for (Rank i = 0; i < most;) {
    const Rank rank = most < group.worldSize ? i : (group.rank + i) % group.worldSize;
    const auto isThere = group.isRead[Gathering::index(rank)] ? Result<bool>(true) : readAddress(group, rank);
    SW_RETURN_IF_ERROR(isThere.status());
    if (*isThere) {
      pause.reset();
      if (++i < most) {  // after the last address other ranks may have finished, and exited
        SW_RETURN_IF_ERROR(lookout.look());
      }
      continue;
    }
    if (const Deadline now = Clock::now(); now >= group.deadline) {
      return absentError(group, rank);
    } else if (now >= nextRound && most == group.worldSize) {
      nextRound = now + Lookout::kLookEvery;
      SW_RETURN_IF_ERROR(readUnread(group, Lookout::kMostWatched));
    }
    SW_RETURN_IF_ERROR(pause.wait(lookout));
  }
  return Status::ok();
}

// ---- the roster

// False: this rank is not in the roster.
Result<bool> takeRoster(Gathering& group, const std::string& bytes) {
  const auto addresses = rosterWith(group, bytes);
  for (Rank rank = 0; addresses.has_value() && rank < group.worldSize; ++rank) {
    SW_RETURN_IF_ERROR(takeAddress(group, rank, (*addresses)[Gathering::index(rank)]));
  }
  return addresses.has_value();
}

// Called after rank 0's address was read.
Status awaitRoster(Gathering& group, Lookout& lookout) {
  Pause pause(group);
  while (true) {
    const auto bytes = askStore(group, kRosterKey);
    SW_RETURN_IF_ERROR(bytes.status());
    const auto isTaken = bytes->has_value() ? takeRoster(group, **bytes) : Result<bool>(false);
    SW_RETURN_IF_ERROR(isTaken.status());
    if (*isTaken) {
      return Status::ok();
    }
    if (bytes->has_value()) {
      SW_RETURN_IF_ERROR(checkStillOwn(group));
    }
    if (Clock::now() >= group.deadline) {
      return absentError(group, 0);
    }
    SW_RETURN_IF_ERROR(pause.wait(lookout));
  }
}

}  // namespace

Status publishAddress(Gathering& group) {
  const Status prepared = group.machine.prepare(group.own, group.rank, group.worldSize, *group.peers.options);
  if (group.worldSize > 1) {
    // After a failure the address has the reason, for the other ranks.
    group.published = encodeAddress(group.own.address);
    SW_RETURN_IF_ERROR(putStore(group, addressKey(group.rank), group.published));
  }
  return prepared;
}

Status readAddresses(Gathering& group, Lookout& lookout) {
  if (!usesRoster(group)) {
    SW_RETURN_IF_ERROR(readEach(group, lookout, group.worldSize));
    const bool isForUnsure = group.rank == 0 && !group.attempt.process.isZero();
    return isForUnsure ? writeRoster(group) : Status::ok();
  }
  if (group.rank == 0) {
    SW_RETURN_IF_ERROR(readEach(group, lookout, group.worldSize));
    return writeRoster(group);
  }
  if (group.attempt.isSure) {
    SW_RETURN_IF_ERROR(readEach(group, lookout, 1));
  }
  SW_RETURN_IF_ERROR(awaitRoster(group, lookout));
  group.attempt.isSure = true;
  return Status::ok();
}

Status checkStillOwn(Gathering& group) {
  const auto stored = group.store.get(addressKey(group.rank), Clock::now());
  return stored.isOk() ? checkOwnAddress(group.rank, group.own.address, group.published, *stored) : Status::ok();
}

}  // namespace shardwire::internal
