// A peer goes through these states, each in a poll() that does not wait: wanted, by an operation here; dialed, until
// there is a link that both ends have proved; joining, while the two ends agree over the link; over, with a connection
// or for good. A peer that called this rank begins in the joining state. After a hang-up the peer is dialed again after
// a pause: the peer may have dialed this rank at the same time, and then takes its own link; or the peer has ended, and
// the next dial detects the end. The fabric's thread accepts callers and watches the sockets under way, for all groups
// of the process, so a rank answers whatever its program does.
#include "backend/bootstrap/late_wires.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "backend/base/log.h"
#include "backend/fabric/fd_watches.h"

namespace shardwire::internal {
namespace {

// The pause before a peer that hung up is dialed again: the first and the longest.
constexpr Duration kFirstRedial = std::chrono::milliseconds(5);
constexpr Duration kLongestRedial = std::chrono::milliseconds(500);
// The interval between polls while a pair is being joined.
constexpr Duration kLookEvery = std::chrono::milliseconds(100);

class WireLateLinks final : public LateLinks {
 public:
  explicit WireLateLinks(LateWires parts);

  bool isLate(Rank peer) const override { return peers_[static_cast<std::size_t>(peer)].state != State::kNotLate; }
  void want(Rank peer) override;
  std::vector<News> poll() override;
  bool hasNews() const override { return wakeup_->isDue(); }
  bool isAnyUnderWay() const override { return !underway_.empty(); }
  std::string whyNotYet(Rank peer) const override;

 private:
  enum class State : unsigned char { kNotLate, kIdle, kWanted, kDialed, kJoining, kOver };
  struct Peer {
    State state = State::kNotLate;
    // The remaining transports, best first; both ends see transports fail in this order.
    std::vector<TransportKind> kinds;
    std::string failed;  // why earlier transports failed: "; rdma: no common subnet"
    Status why;          // in state kOver: not ok where there is no link
    std::string who;
    bool isWanted = false;  // by an operation here
    std::optional<PeerDial> dial;
    std::unique_ptr<Joining> joining;
    bool didDial = false;  // this rank dialed the link over which the peer joins
    Duration pause = kFirstRedial;
    Deadline dialAt{};  // the time of the next dial, in state kWanted
  };
  using Outcome = std::optional<Joining::Outcome>;  // nothing: under way

  Peer& peerAt(Rank rank) { return peers_[static_cast<std::size_t>(rank)]; }
  std::unique_ptr<Joining> beginJoining(Rank rank, Link link, bool isDialer);
  void goOnWith(Rank rank);
  void answer(Caller caller);
  void refuse(Caller caller);
  Outcome advance(Rank rank);
  Outcome dial(Rank rank, Peer& peer);
  Outcome join(Peer& peer);
  Outcome beginAgain(Peer& peer);
  void watchSockets();

  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<LateWakeup> wakeup_;
  LateWires parts_;
  std::vector<Peer> peers_;     // by rank
  std::vector<Rank> underway_;  // wanted, dialed, joining
  Deadline nextLook_ = kNoDeadline;
  std::vector<std::unique_ptr<FdWatch>> watched_;  // sockets that are under way
};

WireLateLinks::WireLateLinks(LateWires parts)
    : fabric_(parts.fabric),
      wakeup_(parts.rankLinks.wakeup()),
      parts_(std::move(parts)),
      peers_(parts_.addresses.size()) {
  parts_.rankLinks.know(parts_.self, parts_.options, &parts_.addresses, fabric_->secret());
  for (LateWirePeer& each : parts_.peers) {
    peerAt(each.rank).state = State::kIdle;
    peerAt(each.rank).kinds = std::move(each.kinds);
    peerAt(each.rank).who = std::move(each.who);
  }
}

void WireLateLinks::goOnWith(Rank rank) {
  if (std::find(underway_.begin(), underway_.end(), rank) == underway_.end()) {
    underway_.push_back(rank);
  }
  nextLook_ = {};
}

void WireLateLinks::want(Rank rank) {
  Peer& peer = peerAt(rank);
  if (peer.state == State::kOver || peer.isWanted) {
    return;
  }
  peer.isWanted = true;
  if (peer.state == State::kIdle) {
    peer.state = State::kWanted;
    goOnWith(rank);
  }
}

std::vector<LateLinks::News> WireLateLinks::poll() {
  std::vector<News> news;
  if (!wakeup_->isDue() && (underway_.empty() || Clock::now() < nextLook_)) {
    return news;
  }
  wakeup_->clear();  // before the events are handled
  watched_.clear();  // before any watched socket is closed
  auto callers = parts_.rankLinks.callers();
  if (!callers.isOk()) {
    logWarn("rank {} could not accept a peer: {}", parts_.self, callers.status().message());
  }
  for (std::size_t i = 0; callers.isOk() && i < callers->size(); ++i) {
    answer(std::move((*callers)[i]));
  }
  for (std::size_t i = 0; i < underway_.size();) {
    const Rank rank = underway_[i];
    auto outcome = advance(rank);
    const bool isOver = outcome.has_value();
    if (isOver) {
      Peer& peer = peerAt(rank);
      peer.state = State::kOver;
      peer.why = outcome->status();
      peer.dial.reset();
      peer.joining.reset();
      news.push_back({rank, std::move(*outcome)});
    }
    if (isOver || peerAt(rank).state == State::kIdle) {
      underway_.erase(underway_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  watchSockets();
  return news;
}

// The caller has proved that it belongs to the group. If two ranks dialed each other, the higher rank's link is kept.
// If this rank answered the peer before, the newer link is kept: the peer would not have called again if it still had
// the older link.
void WireLateLinks::answer(Caller caller) {
  const Rank rank = caller.from;
  Peer& peer = peerAt(rank);
  const bool hasOwn = peer.state == State::kDialed || (peer.state == State::kJoining && peer.didDial);
  const auto kind = std::find(peer.kinds.begin(), peer.kinds.end(), caller.kind);
  if (peer.state == State::kOver && peer.why.isOk()) {
    return logDebug("rank {}: {} dialed, and is joined already: both ranks dialed at once", parts_.self, peer.who);
  }
  if (peer.state == State::kOver || (kind == peer.kinds.end() && !peer.failed.empty())) {
    return refuse(std::move(caller));
  }
  if (peer.state == State::kNotLate || kind == peer.kinds.end()) {
    return logWarn("rank {}: rejected rank {}, which dialed by transport {}, by which the two are not joined",
                   parts_.self, rank, static_cast<int>(caller.kind));
  }
  if (hasOwn && parts_.self > rank) {
    return;
  }
  peer.dial.reset();
  peer.kinds.erase(peer.kinds.begin(), kind);  // the peer saw the earlier transports fail
  peer.joining = beginJoining(rank, std::move(caller.link), false);
  goOnWith(rank);
}

// The peer did not see the failure here, or had no part in it: without an answer the peer would dial until its
// operation expires.
void WireLateLinks::refuse(Caller caller) {
  Peer& peer = peerAt(caller.from);
  const auto kind = static_cast<std::size_t>(caller.kind);
  const std::string why = peer.why.isOk() ? peer.failed : peer.why.message();
  logInfo("rank {}: {} dialed, and gets the reason why the two cannot be joined: {}", parts_.self, peer.who, why);
  if (kind < parts_.endpoints.size() && parts_.endpoints[kind] != nullptr) {
    // kPeerFailed would mean a hang-up, after which the peer dials again.
    const bool isEnd = peer.why.isOk() || peer.why.code() == StatusCode::kPeerFailed;
    parts_.endpoints[kind]->refuse(std::move(caller.link),
                                   {isEnd ? StatusCode::kUnsupported : peer.why.code(), "it gave up: " + why});
  }
}

std::unique_ptr<Joining> WireLateLinks::beginJoining(Rank rank, Link link, bool isDialer) {
  Peer& peer = peerAt(rank);
  const auto kind = static_cast<std::size_t>(peer.kinds.front());
  peer.didDial = isDialer;
  peer.state = State::kJoining;
  return parts_.endpoints[kind]->begin(std::move(link), rank, isDialer,
                                       parts_.addresses[static_cast<std::size_t>(rank)].transports[kind].bytes,
                                       peer.who);
}

WireLateLinks::Outcome WireLateLinks::advance(Rank rank) {
  Peer& peer = peerAt(rank);
  if (peer.state == State::kWanted && Clock::now() >= peer.dialAt) {
    peer.dial.emplace(parts_.rankLinks.begin(rank, peer.kinds.front()));
    peer.state = State::kDialed;
  }
  if (peer.state == State::kDialed) {
    if (auto outcome = dial(rank, peer); outcome.has_value()) {
      return outcome;
    }
  }
  return peer.state == State::kJoining ? join(peer) : std::nullopt;
}

WireLateLinks::Outcome WireLateLinks::dial(Rank rank, Peer& peer) {
  auto link = peer.dial->step();
  if (!link.has_value()) {
    return std::nullopt;
  }
  if (!link->isOk()) {
    const Status& why = link->status();
    if (peer.dial->wasHungUp() || why.code() == StatusCode::kPeerFailed) {
      return beginAgain(peer);
    }
    if (peer.dial->wasRefused()) {
      return Joining::Outcome(
          Status{StatusCode::kPeerFailed,
                 fmt::format("{} died or left before it was joined to this rank ({})", peer.who, why.message())});
    }
    if (peer.dial->wasUnanswered()) {
      return Joining::Outcome(Status{
          StatusCode::kPeerFailed,
          fmt::format("{} does not answer: its host or the network to it is down ({})", peer.who, why.message())});
    }
    return Joining::Outcome(Status{why.code(), fmt::format("{} cannot be joined: {}", peer.who, why.message())});
  }
  peer.dial.reset();
  peer.joining = beginJoining(rank, std::move(**link), true);
  return std::nullopt;
}

WireLateLinks::Outcome WireLateLinks::join(Peer& peer) {
  auto outcome = peer.joining->step();
  if (!outcome.has_value() || outcome->isOk()) {
    return outcome;
  }
  const Status& why = outcome->status();
  if (why.code() == StatusCode::kPeerFailed) {
    logDebug("rank {}: {} hung up during the handshake with this rank: {}", parts_.self, peer.who, why.message());
    return beginAgain(peer);
  }
  const char* const kind = transportKindName(peer.kinds.front());
  peer.failed += fmt::format("{}{}: {}", peer.failed.empty() ? "" : "; ", kind, why.message());
  // With other errors the user's settings forbid the pair, or another program is at the other end: no other transport
  // is tried (Endpoint::needsLink).
  const bool mayTryNext = why.code() == StatusCode::kUnsupported || why.code() == StatusCode::kSystem;
  peer.kinds.erase(peer.kinds.begin());
  if (!mayTryNext || peer.kinds.empty()) {
    return Joining::Outcome(Status{why.code(), fmt::format("{} cannot be joined: {}", peer.who, peer.failed)});
  }
  logInfo("rank {}: {} to {} failed, {} is tried: {}", parts_.self, kind, peer.who,
          transportKindName(peer.kinds.front()), why.message());
  return beginAgain(peer);
}

WireLateLinks::Outcome WireLateLinks::beginAgain(Peer& peer) {
  peer.dial.reset();
  peer.joining.reset();
  peer.state = peer.isWanted ? State::kWanted : State::kIdle;
  peer.dialAt = Clock::now() + peer.pause;
  peer.pause = std::min(2 * peer.pause, kLongestRedial);
  return std::nullopt;
}

// Watches every socket under way from here on, and sets the time of the next poll.
void WireLateLinks::watchSockets() {
  std::vector<pollfd> entries;
  nextLook_ = kNoDeadline;
  for (const Rank rank : underway_) {
    Peer& peer = peerAt(rank);
    if (peer.state == State::kWanted) {
      nextLook_ = std::min(nextLook_, peer.dialAt);
    } else if (peer.state == State::kDialed) {
      nextLook_ = std::min(nextLook_, peer.dial->appendSockets(&entries));
    } else {
      peer.joining->appendSockets(&entries);
      nextLook_ = std::min(nextLook_, Clock::now() + kLookEvery);
    }
  }
  std::map<int, std::uint32_t> wanted;
  for (const pollfd& each : entries) {
    wanted[each.fd] |= (each.events & POLLOUT) != 0 ? EPOLLOUT : EPOLLIN;
  }
  for (const auto& [fd, events] : wanted) {
    auto watch = FdWatch::create(fabric_->watches(), fd, events, [wakeup = wakeup_.get()] {
      wakeup->ring();
      return false;  // poll() decides what is watched next
    });
    if (watch.isOk()) {
      watched_.push_back(std::move(*watch));
    } else {
      logWarn("{}", watch.status().message());
    }
  }
}

std::string WireLateLinks::whyNotYet(Rank rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  switch (peer.state) {
    case State::kWanted:
      return fmt::format("{} hangs up after each dial", peer.who);
    case State::kDialed:
      return fmt::format("{} does not answer: {} (stopped?)", peer.who, peer.dial->whyNot().message());
    case State::kJoining:
      return fmt::format("{} does not go on being joined to this rank: {} (stopped?)", peer.who,
                         peer.joining->awaited());
    default:
      return {};
  }
}

}  // namespace

std::unique_ptr<LateLinks> makeLateWires(LateWires parts) {
  return std::make_unique<WireLateLinks>(std::move(parts));
}

}  // namespace shardwire::internal
