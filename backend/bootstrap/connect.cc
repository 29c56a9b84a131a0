// One rank's way through the bootstrap: the rank publishes its address (read_addresses), reads the other addresses,
// chooses a transport for each pair and joins the peers (join_peers), while the lookout watches for deaths, interrupts
// and failures of other ranks. finish() collects the objects that the connections share, and starts the late links,
// which join the remaining peers later. connectOnce() is one attempt under the store's attempt and round; it begins
// again when the job was restarted. Every failure ends here, where all ranks agree on one reason
// (Lookout::agreeOnFailure).
#include "backend/bootstrap/connect.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "backend/base/log.h"
#include "backend/bootstrap/gathering.h"
#include "backend/bootstrap/join_peers.h"
#include "backend/bootstrap/late_wires.h"
#include "backend/bootstrap/lookout.h"
#include "backend/bootstrap/read_addresses.h"
#include "backend/bootstrap/roster.h"
#include "backend/bootstrap/store_rounds.h"
#include "backend/bootstrap/summary.h"
#include "backend/transport/wire_doorbell.h"

namespace shardwire::internal {

namespace {

// Whether the peer is joined later by this transport. If the transport needs no link, no other transport is tried.
bool isLateBy(const Gathering& group, Rank peer, std::size_t kind) {
  const auto& kinds = group.lateBy[Gathering::index(peer)];
  return !kinds.empty() && static_cast<std::size_t>(kinds.front()) == kind;
}

// Peers to be joined later by a transport without a link.
std::unique_ptr<LateLinks> lateWithoutLink(Gathering& group) {
  std::unique_ptr<LateLinks> all;
  for (std::size_t kind = 0; kind < group.own.endpoints.size(); ++kind) {
    std::vector<LatePeer> late;
    for (Rank peer = 0; peer < group.worldSize; ++peer) {
      if (isLateBy(group, peer, kind) && !group.own.endpoints[kind]->needsLink()) {
        late.push_back({peer, group.addressOf(peer).transports[kind].bytes, group.nameOf(peer)});
      }
    }
    if (!late.empty()) {
      all = bothLateLinks(std::move(all), group.own.endpoints[kind]->joinLate(std::move(late)));
    }
  }
  return all;
}

// Peers to be joined later by transports over links: this rank's link endpoint stays open for these peers.
std::unique_ptr<LateLinks> lateOverWires(Gathering& group) {
  LateWires parts{.self = group.rank, .options = group.peers.options.get()};
  for (Rank peer = 0; peer < group.worldSize; ++peer) {
    const auto& kinds = group.lateBy[Gathering::index(peer)];
    if (!kinds.empty() && group.own.endpoints[static_cast<std::size_t>(kinds.front())]->needsLink()) {
      parts.peers.push_back({peer, kinds, group.nameOf(peer)});
    }
  }
  if (parts.peers.empty()) {
    return nullptr;
  }
  parts.addresses = group.addresses;
  parts.rankLinks = std::move(group.own.rankLinks);
  parts.endpoints = std::move(group.own.endpoints);
  parts.fabric = group.own.fabric;
  return makeLateWires(std::move(parts));
}

// Rank 0's sign of life is a random name of this group alone. The name is hashed, since any process with the name can
// check whether the rank lives.
void nameAll(Gathering& group) {
  const bool isAlone = group.worldSize == 1;
  for (Rank peer = 0; peer < group.worldSize; ++peer) {
    const RankAddress& address = isAlone ? group.own.address : group.addressOf(peer);
    group.peers.names.push_back({address.host, address.pid});
  }
  const RankAddress& first = isAlone ? group.own.address : group.addressOf(0);
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char letter : first.lifeName) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  group.peers.groupId = fmt::format("{:016x}", hash);
}

// All pairs are joined, or put off: collects the objects that the connections share.
Status finish(Gathering& group, const std::array<bool, kNumTransportKinds>& used) {
  Peers& peers = group.peers;
  nameAll(group);
  peers.hosts = group.worldSize > 1 ? numberHosts(group.addresses) : std::vector<std::int32_t>{0};
  for (std::size_t kind = 0; kind < used.size(); ++kind) {
    if (auto wire = used[kind] ? group.own.endpoints[kind]->takeWire() : nullptr; wire != nullptr) {
      peers.wires.push_back(std::move(wire));
    }
  }
  auto withoutLink = lateWithoutLink(group);
  peers.late = bothLateLinks(std::move(withoutLink), lateOverWires(group));
  if (!peers.wires.empty()) {
    auto doorbell = WireDoorbell::create(std::move(peers.doorbell), peers.wires, group.own.fabric->watches());
    SW_RETURN_IF_ERROR(doorbell.status());
    peers.doorbell = std::move(*doorbell);
  }
  return Status::ok();
}

// A store that did not answer before the deadline: for the caller this is a timeout like any other.
Status asTimeout(const Status& failure, Deadline deadline) {
  const bool isLate = failure.code() == StatusCode::kSystem && Clock::now() >= deadline;
  return isLate ? Status{StatusCode::kTimeout, failure.message()} : failure;
}

// One rank's way through the bootstrap.
Status gather(Gathering& group, Lookout& lookout) {
  SW_RETURN_IF_ERROR(publishAddress(group));
  group.peers.doorbell = group.machine.makeDoorbell(group.own);
  if (group.worldSize == 1) {
    return finish(group, {});
  }
  SW_RETURN_IF_ERROR(readAddresses(group, lookout));
  group.own.rankLinks.know(group.rank, group.peers.options.get(), &group.addresses, group.own.fabric->secret());
  PeerJoiner joiner(group, lookout);
  SW_RETURN_IF_ERROR(joiner.choose());
  group.knowsAll = true;
  SW_RETURN_IF_ERROR(joiner.joinAll());
  if (!usesRoster(group) || group.rank == 0) {
    SW_RETURN_IF_ERROR(checkStillOwn(group));
  }
  return finish(group, joiner.used());
}

// Nothing: the job was restarted meanwhile, and this rank has to begin again.
std::optional<Result<Peers>> connectOnce(Machine& machine, Store& store, Rank rank, int worldSize,
                                         const Options& options, Deadline deadline) {
  const auto attempt =
      worldSize > 1 && options.storeIsKept ? findAttempt(store, rank, deadline) : Result<Attempt>(Attempt{});
  if (!attempt.isOk()) {
    return asTimeout(attempt.status(), deadline);
  }
  AttemptStore ofAttempt(store, *attempt);
  const auto round = worldSize > 1 ? nextRound(ofAttempt, rank) : Result<int>(0);
  if (!round.isOk()) {
    return asTimeout(round.status(), deadline);
  }
  RoundStore ofRound(ofAttempt, *round);
  Gathering group{machine, ofRound, store, *attempt, *round, rank, worldSize, deadline};
  const std::size_t size = Gathering::index(worldSize);
  group.addresses.resize(size);
  group.isRead.resize(size);
  group.attached.resize(size);
  group.lateBy.resize(size);
  group.needsLink.resize(size);
  group.peers.options = std::make_unique<const Options>(options);
  group.peers.connections.resize(size);
  group.peers.whyNotFaster.resize(size);
  Lookout lookout(group);
  const Status made = gather(group, lookout);
  if (made.isOk()) {
    return std::move(group.peers);
  }
  noteEndOfGroup();
  if (lookout.isOutdated()) {
    return std::nullopt;
  }
  return lookout.agreeOnFailure(group.storeFailed ? asTimeout(made, deadline) : made);
}

}  // namespace

Result<Peers> connectPeers(Store& store, Rank rank, int worldSize, const Options& options, Deadline deadline,
                           const std::string& groupName) {
  return connectPeers(thisMachine(), store, rank, worldSize, options, deadline, groupName);
}

Result<Peers> connectPeers(Machine& machine, Store& store, Rank rank, int worldSize, const Options& options,
                           Deadline deadline, const std::string& groupName) {
  if (worldSize < 1 || rank < 0 || rank >= worldSize) {
    return Status{StatusCode::kInvalidArgument, fmt::format("rank {} of {} does not exist", rank, worldSize)};
  }
  std::optional<Result<Peers>> peers;
  while (!peers.has_value()) {
    peers = connectOnce(machine, store, rank, worldSize, options, deadline);
  }
  if (!peers->isOk()) {
    return Status{peers->status().code(),
                  fmt::format("group '{}' could not be made: {}", groupName, peers->status().message())};
  }
  logInfo("group '{}', rank {} of {}: {}", groupName, rank, worldSize, summary(**peers));
  return std::move(*peers);
}

}  // namespace shardwire::internal
