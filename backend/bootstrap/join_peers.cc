// Joins this rank to all peers, in an order without a circle of waiting ranks. choose() checks all addresses and lists
// the transports of each pair, best first. This rank first attaches to peers of this host, which needs no help of the
// peer. Then this rank dials all lower ranks in order, and answers the higher ranks, each of which calls after dialing
// the ranks below. So rank 0 answers at once, and the other ranks follow. If a transport over a link fails, both ends
// try the next transport. Last, this rank waits until every peer attached to has attached, too. A pair that may be
// joined later gets a connection that carries nothing.
#include "backend/bootstrap/join_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "backend/base/interruptible_wait.h"
#include "backend/base/log.h"
#include "backend/bootstrap/check_addresses.h"
#include "backend/bootstrap/summary.h"

namespace shardwire::internal {
namespace {

// Warns once in a process: later groups of a job have the same ranks, or fewer.
void warnOfForeignProcesses(const Gathering& group) {
  static std::atomic<bool> isSaid{false};
  const std::string warning = foreignProcessWarning(group.rank, group.addresses);
  if (!warning.empty() && !isSaid.exchange(true)) {
    logWarn("{}", warning);
  }
}

}  // namespace

Status PeerJoiner::choose() {
  SW_RETURN_IF_ERROR(checkJobTokens(group_.addresses));
  SW_RETURN_IF_ERROR(checkPairs(group_.addresses));
  warnOfForeignProcesses(group_);
  choices_.resize(Gathering::index(group_.worldSize));
  for (Rank peer = 0; peer < group_.worldSize; ++peer) {
    if (peer == group_.rank) {
      continue;
    }
    const RankAddress& theirs = group_.addressOf(peer);
    const RankAddress& mine = group_.addressOf(group_.rank);
    choiceOf(peer) = chooseTransports(group_.rank, mine, peer, theirs, [&](TransportKind kind) {
      return endpoint(kind).whyNot(theirs.transports[static_cast<std::size_t>(kind)].bytes);
    });
    if (choiceOf(peer).candidates.empty()) {
      return {
          StatusCode::kUnsupported,
          fmt::format("no transport joins {}: {}", pairText(group_.rank, mine, peer, theirs), reasons(choiceOf(peer)))};
    }
    group_.needsLink[Gathering::index(peer)] = endpoint(choiceOf(peer).candidates.front()).needsLink();
  }
  return Status::ok();
}

Status PeerJoiner::joinAll() {
  SW_RETURN_IF_ERROR(attachAll());
  SW_RETURN_IF_ERROR(dialLower());
  SW_RETURN_IF_ERROR(acceptHigher());
  SW_RETURN_IF_ERROR(meetAll());
  return lookout_.isInterrupted() ? interruptedStatus("connecting to the peers") : Status::ok();
}

// ---- without the peer's help

// A pair over a wire is put off on both ends or on neither: neither end waits for the other's call.
bool PeerJoiner::isLateWire(Rank peer) {
  const Endpoint& first = endpoint(choiceOf(peer).candidates.front());
  return first.needsLink() && first.mayJoinLate() && group_.own.address.joinsLate && group_.addressOf(peer).joinsLate;
}

void PeerJoiner::putOff(Rank peer) {
  const TransportKind kind = choiceOf(peer).candidates.front();
  for (const TransportKind each : choiceOf(peer).candidates) {
    if (each == kind || endpoint(each).mayJoinLate()) {
      group_.lateBy[Gathering::index(peer)].push_back(each);
      used_[static_cast<std::size_t>(each)] = true;
    }
  }
  group_.peers.connections[Gathering::index(peer)] =
      std::make_unique<UnjoinedConnection>(peer, transportKindName(kind), *group_.peers.options);
  group_.peers.whyNotFaster[Gathering::index(peer)] = reasons(choiceOf(peer), static_cast<int>(kind));
  lookout_.joined(peer);
}

Status PeerJoiner::attachAll() {
  for (Rank i = 1; i < group_.worldSize; ++i) {
    const Rank peer = (group_.rank + i) % group_.worldSize;  // so that not all ranks ask the same process at once
    const TransportKind kind = choiceOf(peer).candidates.front();
    const bool needsLink = group_.needsLink[Gathering::index(peer)];
    if (needsLink ? isLateWire(peer) : group_.own.address.joinsLate) {
      putOff(peer);
    } else if (!needsLink) {
      SW_RETURN_IF_ERROR(attach(peer, kind));
      SW_RETURN_IF_ERROR(lookout_.look());
    }
  }
  return Status::ok();
}

// The peer may have finished its half, so this rank cannot try another transport.
Status PeerJoiner::attach(Rank peer, TransportKind kind) {
  const TransportAddress& address = group_.addressOf(peer).transports[static_cast<std::size_t>(kind)];
  group_.busyWith = peer;
  auto half = endpoint(kind).attach(peer, address.bytes, group_.nameOf(peer), lookout_.limit());
  if (half.isOk()) {
    group_.busyWith = -1;
    group_.attached[Gathering::index(peer)] = {std::move(*half), kind};
    return Status::ok();
  }
  SW_RETURN_IF_ERROR(lookout_.ended());
  if (lookout_.isInterrupted()) {
    return interruptedStatus(fmt::format("connecting to {}", group_.nameOf(peer)));
  }
  const Status& why = half.status();
  const bool mayHelp = why.code() == StatusCode::kUnsupported || why.code() == StatusCode::kSystem;
  return {why.code(),
          fmt::format("{} cannot be joined by {}: {}{}",
                      pairText(group_.rank, group_.addressOf(group_.rank), peer, group_.addressOf(peer)),
                      transportKindName(kind), why.message(),
                      mayHelp ? fmt::format(". SHARDWIRE_TRANSPORTS=^{} on all ranks joins them in another way",
                                            transportKindName(kind))
                              : "")};
}

// Completes the join to peers that have attached to this rank, too; returns the peers that have not.
Result<std::vector<Rank>> PeerJoiner::unmet() {
  std::vector<Rank> missing;
  for (Rank peer = 0; peer < group_.worldSize; ++peer) {
    if (!group_.isAttached(peer)) {
      continue;
    }
    Gathering::Attached& half = group_.attached[Gathering::index(peer)];
    const auto isMet = group_.isMet(peer);
    if (!isMet.isOk()) {
      return isMet.status().code() == StatusCode::kInvalidArgument
                 ? forbiddenBySettings(half.kind, peer, isMet.status())
                 : isMet.status();
    }
    if (*isMet) {
      SW_RETURN_IF_ERROR(join(std::move(half.connection), half.kind));
    } else {
      missing.push_back(peer);
    }
  }
  return missing;
}

Status PeerJoiner::meetAll() {
  Doorbell& bell = *group_.peers.doorbell;
  while (true) {
    const std::uint32_t ticket = bell.arm(Wakes::kSleepers);
    auto missing = unmet();
    SW_RETURN_IF_ERROR(missing.status());
    if (missing->empty()) {
      bell.disarm();
      return Status::ok();
    }
    if (Clock::now() >= group_.deadline) {
      return missingError(*missing);
    }
    SW_RETURN_IF_ERROR(lookout_.look());
    bell.sleep(ticket, std::min(group_.deadline, Clock::now() + Lookout::kLookEvery));
  }
}

// ---- this rank dials

Result<std::unique_ptr<Connection>> PeerJoiner::connect(Link link, TransportKind kind, Rank peer, bool isDialer) {
  const TransportAddress& address = group_.addressOf(peer).transports[static_cast<std::size_t>(kind)];
  return endpoint(kind).connect(std::move(link), peer, isDialer, address.bytes, group_.nameOf(peer), lookout_.limit());
}

Result<std::unique_ptr<Connection>> PeerJoiner::dialBy(TransportKind kind, Rank peer) {
  while (true) {
    auto link = group_.machine.dial(group_.own, peer, kind, lookout_.limit());
    SW_RETURN_IF_ERROR(link.status());
    auto connection = connect(std::move(*link), kind, peer, true);
    if (connection.status().code() != StatusCode::kTimeout || lookout_.limit().isOver()) {
      return connection;
    }
    // The peer rejected this rank's connection: this rank was slow to speak while too many callers dialed.
  }
}

// Tries the best transport first. If a transport fails although both ranks offer it, the next transport is tried.
Status PeerJoiner::dial(Rank peer) {
  TransportChoice& choice = choiceOf(peer);
  Status last;
  group_.busyWith = peer;
  for (const TransportKind kind : choice.candidates) {
    auto connection = dialBy(kind, peer);
    if (connection.isOk()) {
      return join(std::move(*connection), kind);
    }
    SW_RETURN_IF_ERROR(lookout_.ended());
    last = connection.status();
    if (lookout_.isInterrupted()) {
      return interruptedStatus(fmt::format("connecting to {}", group_.nameOf(peer)));
    }
    if (last.code() == StatusCode::kInvalidArgument) {
      return forbiddenBySettings(kind, peer, last);
    }
    choice.whyNot[static_cast<std::size_t>(kind)] = last.message();
    if (last.code() == StatusCode::kTimeout || last.code() == StatusCode::kMismatch) {
      return {last.code(), fmt::format("rank {} could not be joined by rank {} ({}): {}", peer, group_.rank,
                                       transportKindName(kind), last.message())};
    }
  }
  return {
      last.code() == StatusCode::kPeerFailed ? StatusCode::kPeerFailed : StatusCode::kUnsupported,
      fmt::format("no transport joins {}: {}",
                  pairText(group_.rank, group_.addressOf(group_.rank), peer, group_.addressOf(peer)), reasons(choice))};
}

// In the order of ranks: a rank answers once it has dialed all ranks below, so rank 0 answers at once and the other
// ranks follow.
Status PeerJoiner::dialLower() {
  for (Rank peer = 0; peer < group_.rank; ++peer) {
    if (!group_.isAttached(peer) && !group_.isJoined(peer)) {
      SW_RETURN_IF_ERROR(dial(peer));
      SW_RETURN_IF_ERROR(lookout_.look());
    }
  }
  return Status::ok();
}

Status PeerJoiner::forbiddenBySettings(TransportKind kind, Rank peer, const Status& why) const {
  return {StatusCode::kUnsupported,
          fmt::format("ranks {} and {} cannot be joined ({}): {}", std::min(group_.rank, peer),
                      std::max(group_.rank, peer), transportKindName(kind), why.message())};
}

Status PeerJoiner::join(std::unique_ptr<Connection> connection, TransportKind kind) {
  const Rank peer = connection->peer();
  group_.busyWith = -1;
  if (group_.isJoined(peer)) {
    return {StatusCode::kMismatch, fmt::format("two processes call themselves rank {}", peer)};
  }
  group_.peers.connections[Gathering::index(peer)] = std::move(connection);
  lookout_.joined(peer);
  used_[static_cast<std::size_t>(kind)] = true;
  group_.peers.whyNotFaster[Gathering::index(peer)] = reasons(choiceOf(peer), static_cast<int>(kind));
  return Status::ok();
}

// ---- this rank answers

bool PeerJoiner::isCandidate(TransportKind kind, Rank peer) const {
  const auto& candidates = choices_[Gathering::index(peer)].candidates;
  return std::find(candidates.begin(), candidates.end(), kind) != candidates.end();
}

// A handshake that this rank answered has failed. The dialer learns of the failure too, and tries the next transport or
// gives up. If the dialer died, the next look shows the death.
Status PeerJoiner::noteFailure(TransportKind kind, Rank peer, const Status& why) {
  SW_RETURN_IF_ERROR(lookout_.look());
  group_.busyWith = -1;
  choiceOf(peer).whyNot[static_cast<std::size_t>(kind)] = why.message();
  logInfo("rank {}: {} to {} failed: {}", group_.rank, transportKindName(kind), group_.nameOf(peer), why.message());
  return Status::ok();
}

Status PeerJoiner::answer(Caller caller) {
  const Rank peer = caller.from;
  if (!isCandidate(caller.kind, peer)) {
    logWarn(
        "rank {}: rejected a process that calls itself rank {} and dialed by transport {}, which does not join the two "
        "ranks",
        group_.rank, peer, static_cast<int>(caller.kind));
    return Status::ok();
  }
  // A caller that is joined later has finished the bootstrap, and its first operation needs this rank. This rank hangs
  // up, and the caller dials again until this rank has finished, too.
  if (!group_.lateBy[Gathering::index(peer)].empty()) {
    return Status::ok();
  }
  group_.busyWith = peer;
  auto connection = connect(std::move(caller.link), caller.kind, peer, false);
  if (connection.isOk()) {
    return join(std::move(*connection), caller.kind);
  }
  SW_RETURN_IF_ERROR(lookout_.ended());
  return connection.status().code() == StatusCode::kInvalidArgument
             ? forbiddenBySettings(caller.kind, peer, connection.status())
             : noteFailure(caller.kind, peer, connection.status());
}

std::vector<Rank> PeerJoiner::missingHigher() const {
  std::vector<Rank> missing;
  for (Rank rank = group_.rank + 1; rank < group_.worldSize; ++rank) {
    if (!group_.isJoined(rank) && !group_.isAttached(rank)) {
      missing.push_back(rank);
    }
  }
  return missing;
}

Status PeerJoiner::missingError(const std::vector<Rank>& missing) const {
  std::vector<Rank> refusing = missing;
  std::erase_if(refusing, [&](Rank rank) { return !lookout_.refuses(rank); });
  Status late =
      lateError(group_, fmt::format("published an address but did not connect to rank {}", group_.rank), missing);
  return refusing.empty()
             ? late
             : Status{late.code(),
                      fmt::format("{}; {} to connect: it died, or a firewall is in the way", late.message(),
                                  rankList(refusing) + (refusing.size() == 1 ? " refuses" : " refuse"))};
}

// The process's listener accepts the callers, whatever this rank does; then the listener rings this rank's bell.
Status PeerJoiner::acceptHigher() {
  Doorbell& bell = *group_.peers.doorbell;
  for (std::vector<Rank> missing = missingHigher(); !missing.empty(); missing = missingHigher()) {
    if (Clock::now() >= group_.deadline) {
      return missingError(missing);
    }
    const std::uint32_t ticket = bell.arm(Wakes::kSleepers);
    auto callers = group_.machine.callers(group_.own);
    if (const Status& why = callers.status(); !why.isOk()) {
      return {why.code(), fmt::format("rank {} cannot answer the other ranks: {}", group_.rank, why.message())};
    }
    SW_RETURN_IF_ERROR(lookout_.look());
    if (callers->empty()) {
      bell.sleep(ticket, std::min(group_.deadline, Clock::now() + Lookout::kLookEvery));
    }
    for (Caller& each : *callers) {
      SW_RETURN_IF_ERROR(answer(std::move(each)));
    }
  }
  bell.disarm();
  return Status::ok();
}

}  // namespace shardwire::internal
