// Some peers are joined only when an operation first needs the link (LateLinks). The operation is taken at once and
// moves as far as possible: a connection without a link has no room, so bulk frames keep their order, and nothing is
// exposed before this rank knows which memory the peer can read (SendEdge, PointSend). A peer that cannot be joined
// counts as gone, like a dead peer, and fails the group when an operation needs the peer. Several peers may go one
// after the other because of the first; so the engine waits for late links under way before naming the cause
// (mayLearnMore).
#include "backend/exec/peer_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "backend/base/log.h"

namespace shardwire::internal {

namespace {

constexpr Duration kLearnsMoreFor = std::chrono::milliseconds(200);

}  // namespace

PeerLinks::PeerLinks(Peers& peers, const RunContext& context)
    : peers_(peers),
      context_(context),
      isJoined_(static_cast<std::size_t>(context.worldSize)),
      whyGone_(static_cast<std::size_t>(context.worldSize)) {
  for (const auto& connection : peers_.connections) {
    if (connection != nullptr && (peers_.late == nullptr || !peers_.late->isLate(connection->peer()))) {
      isJoined_[static_cast<std::size_t>(connection->peer())] = true;
      joined_.push_back(connection->peer());
    }
  }
}

void PeerLinks::want(Activity& activity) {
  activity.mayLackLinks = false;
  if (isJoinedToAll()) {
    return;
  }
  for (Rank peer = 0; (peer = nextMissing(activity, peer)) < context_.worldSize; ++peer) {
    peers_.late->want(peer);
    activity.mayLackLinks = true;
  }
}

void PeerLinks::wantAll() {
  for (Rank peer = 0; joinsLate() && peer < context_.worldSize; ++peer) {
    if (peer != context_.rank && !isJoined_[static_cast<std::size_t>(peer)]) {
      peers_.late->want(peer);
    }
  }
}

bool PeerLinks::takeLate(std::vector<Rank>* joined) {
  std::vector<LateLinks::News> news = peers_.late->poll();
  for (LateLinks::News& each : news) {
    if (!each.connection.isOk()) {
      logInfo("{}: {}", context_.label, each.connection.status().message());
      noteGone(each.peer, each.connection.status());
      continue;
    }
    std::unique_ptr<Connection> connection = std::move(*each.connection);
    const Rank peer = connection->peer();
    if (fetchesStopped_) {
      static_cast<void>(connection->stopFetches());  // of shared memory: at once
    }
    peers_.connections[static_cast<std::size_t>(peer)] = std::move(connection);
    isJoined_[static_cast<std::size_t>(peer)] = true;
    joined_.push_back(peer);
    joined->push_back(peer);
  }
  return !news.empty();
}

// The first needed peer of the operation, from `first` on, without a link; worldSize: all are joined.
Rank PeerLinks::nextMissing(const Activity& activity, Rank first) const {
  Rank peer = first;
  while (peer < context_.worldSize &&
         (peer == context_.rank || isJoined_[static_cast<std::size_t>(peer)] || !activity.needs(peer))) {
    ++peer;
  }
  return peer;
}

std::string PeerLinks::whyMissing(const Activity& activity) const {
  std::string text;
  for (Rank peer = 0; activity.mayLackLinks && (peer = nextMissing(activity, peer)) < context_.worldSize; ++peer) {
    text += fmt::format("; {}", peers_.late->whyNotYet(peer));
  }
  return text;
}

std::vector<Rank> PeerLinks::goneOf(std::span<const Rank> peers) const {
  std::vector<Rank> gone;
  std::ranges::copy_if(peers, std::back_inserter(gone), [this](Rank peer) { return isGone(peer); });
  return gone;
}

Status PeerLinks::statusOf(Rank peer) const {
  const bool asks = !isClosed_ && !isGone(peer) && isJoined_[static_cast<std::size_t>(peer)];
  return asks ? context_.connection(peer).health() : whyGone(peer);
}

std::vector<Rank> PeerLinks::takeGone() {
  std::vector<Rank> found;
  for (const Rank peer : joined_) {
    if (isGone(peer)) {
      continue;
    }
    if (Status health = context_.connection(peer).health(); !health.isOk()) {
      noteGone(peer, std::move(health));
      found.push_back(peer);
    }
  }
  return found;
}

void PeerLinks::noteGone(Rank peer, Status why) {
  Status& known = whyGone_[static_cast<std::size_t>(peer)];
  if (known.isOk()) {
    gone_.insert(std::ranges::upper_bound(gone_, peer), peer);
    lastGone_ = Clock::now();
  }
  known = std::move(why);
}

bool PeerLinks::mayLearnMore(std::span<const std::shared_ptr<Activity>> inFlight, Clock::time_point now) {
  if (learnsUntil_ == Clock::time_point{}) {
    learnsUntil_ = now + kLearnsMoreFor;
  }
  bool isAnyAwaited = false;
  for (const auto& activity : inFlight) {
    for (Rank peer = 0; activity->mayLackLinks && (peer = nextMissing(*activity, peer)) < context_.worldSize; ++peer) {
      isAnyAwaited = isAnyAwaited || !isGone(peer);
    }
  }
  return isAnyAwaited && now < learnsUntil_;
}

bool PeerLinks::stopFetches() {
  bool haveStopped = true;
  if (!std::exchange(fetchesStopped_, true)) {
    for (const auto& connection : peers_.connections) {
      haveStopped &= connection == nullptr || connection->stopFetches();
    }
  }
  return haveStopped;
}

std::pair<std::vector<std::unique_ptr<Connection>>, std::unique_ptr<LateLinks>> PeerLinks::close() {
  isClosed_ = true;
  std::vector<std::unique_ptr<Connection>> connections;
  for (auto& connection : peers_.connections) {
    connections.push_back(std::move(connection));
  }
  return {std::move(connections), std::move(peers_.late)};
}

std::string PeerLinks::describe() const {
  if (isClosed_) {
    return "the group was shut down\n";
  }
  std::string text;
  for (const auto& connection : peers_.connections) {
    if (connection == nullptr) {
      text += fmt::format("rank {}: this rank\n", context_.rank);
      continue;
    }
    const std::string& why = peers_.whyNotFaster[static_cast<std::size_t>(connection->peer())];
    text += fmt::format("{}{}\n", connection->describe(), why.empty() ? "" : fmt::format(" (no faster one: {})", why));
  }
  return text;
}

}  // namespace shardwire::internal
