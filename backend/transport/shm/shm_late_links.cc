// A peer goes through these states, each in a poll() that does not wait: wanted, by an operation here or by the peer's
// announcement; asked for, while the fabric's thread makes the link of the two processes (ShmDialer), unless there is
// one; attached, when this rank has done its half; joined, when the peer has done the other half. A failure is final,
// and is reported once: here as news, and to the peer, whose half may succeed, by a word in the peer's slot of this
// rank's inbox.
#include "backend/transport/shm/shm_late_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>
#include <utility>

#include "backend/fabric/late_wakeup.h"
#include "backend/transport/shm/shm_connection.h"
#include "backend/transport/shm/shm_fabric.h"
#include "backend/transport/shm/shm_message.h"

namespace shardwire::internal {
namespace {

class ShmLateLinks final : public LateLinks {
 public:
  ShmLateLinks(std::unique_ptr<Endpoint> endpoint, std::shared_ptr<Inbox> inbox, std::vector<LatePeer> peers);
  ~ShmLateLinks() override { wakeup_->end(); }

  bool isLate(Rank peer) const override { return peers_[static_cast<std::size_t>(peer)].state != State::kNotLate; }
  void want(Rank peer) override;
  std::vector<News> poll() override;
  bool hasNews() const override {
    return inbox_->numAnnounced() != numSeen_.load(std::memory_order_relaxed) || wakeup_->isDue();
  }
  bool isAnyUnderWay() const override { return !underway_.empty(); }
  std::string whyNotYet(Rank peer) const override;

 private:
  enum class State : unsigned char { kNotLate, kIdle, kWanted, kAsked, kAttached, kOver };
  struct Peer {
    State state = State::kNotLate;
    std::string address;
    std::string who;
    std::shared_ptr<ShmLinkRequest> request;
    std::unique_ptr<Connection> half;
  };

  Peer& peerAt(Rank rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void noticeAnnounced();
  std::optional<Result<std::unique_ptr<Connection>>> advance(Rank rank);
  Status ask(Peer& peer);
  Status attach(Rank rank, Peer& peer);

  const std::unique_ptr<Endpoint> endpoint_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<LateWakeup> wakeup_;
  std::vector<Peer> peers_;                // by rank
  std::vector<Rank> underway_;             // wanted, asked for or attached
  std::atomic<std::uint32_t> numSeen_{0};  // number of announcements seen
  std::vector<std::uint64_t> seen_;        // the announced ranks seen, by bit
};

ShmLateLinks::ShmLateLinks(std::unique_ptr<Endpoint> endpoint, std::shared_ptr<Inbox> inbox,
                           std::vector<LatePeer> peers)
    : endpoint_(std::move(endpoint)),
      inbox_(std::move(inbox)),
      wakeup_(std::make_shared<LateWakeup>(inbox_->header().bell, inbox_->fabric()->fabric().progressBell())) {
  peers_.resize(static_cast<std::size_t>(inbox_->worldSize()));
  seen_.resize((peers_.size() + 63) / 64);
  for (LatePeer& each : peers) {
    peerAt(each.rank) = {State::kIdle, std::move(each.address), std::move(each.who), nullptr, nullptr};
  }
  inbox_->awaitAnnouncements();
}

void ShmLateLinks::want(Rank peer) {
  if (peerAt(peer).state == State::kIdle) {
    peerAt(peer).state = State::kWanted;
    underway_.push_back(peer);
  }
}

void ShmLateLinks::noticeAnnounced() {
  // Read before the bits: a rank announced in between is found again later.
  const std::uint32_t count = inbox_->numAnnounced();
  if (count == numSeen_.load(std::memory_order_relaxed)) {
    return;
  }
  numSeen_.store(count, std::memory_order_relaxed);
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    std::uint64_t fresh = inbox_->announcedWord(i) & ~seen_[i];
    seen_[i] |= fresh;
    for (; fresh != 0; fresh &= fresh - 1) {
      if (const std::size_t rank = i * 64 + static_cast<std::size_t>(std::countr_zero(fresh)); rank < peers_.size()) {
        want(static_cast<Rank>(rank));
      }
    }
  }
}

std::vector<LateLinks::News> ShmLateLinks::poll() {
  std::vector<News> news;
  if (underway_.empty() && !hasNews()) {
    return news;
  }
  wakeup_->clear();  // before the events are handled
  noticeAnnounced();
  for (std::size_t i = 0; i < underway_.size();) {
    const Rank rank = underway_[i];
    auto outcome = advance(rank);
    if (!outcome.has_value()) {
      ++i;
      continue;
    }
    peerAt(rank).state = State::kOver;
    peerAt(rank).request.reset();
    underway_.erase(underway_.begin() + static_cast<std::ptrdiff_t>(i));
    news.push_back({rank, std::move(*outcome)});
  }
  return news;
}

// Nothing: under way.
std::optional<Result<std::unique_ptr<Connection>>> ShmLateLinks::advance(Rank rank) {
  Peer& peer = peerAt(rank);
  const auto failed = [&](const Status& why) {
    if (why.code() == StatusCode::kPeerFailed) {
      return Status{why.code(),
                    fmt::format("{} died or left before it was joined to this rank ({})", peer.who, why.message())};
    }
    return Status{why.code(), fmt::format("{} cannot be joined by {}: {}", peer.who,
                                          transportKindName(TransportKind::kShm), why.message())};
  };
  const auto failedHere = [&](const Status& why) {
    const Status failure = failed(why);
    if (why.code() != StatusCode::kPeerFailed) {
      inbox_->refuse(rank, failure);
    }
    return failure;
  };
  if (peer.state == State::kWanted) {
    if (const Status asked = ask(peer); !asked.isOk()) {
      return failedHere(asked);
    }
  }
  if (peer.state == State::kAsked) {
    if (const Status attached = attach(rank, peer); !attached.isOk()) {
      return failedHere(attached);
    }
  }
  if (peer.state != State::kAttached) {
    return std::nullopt;
  }
  const auto isMet = endpoint_->isMet(*peer.half);
  if (!isMet.isOk()) {
    return failed(isMet.status());
  }
  if (*isMet) {
    return std::move(peer.half);
  }
  const auto& half = static_cast<const ShmConnection&>(*peer.half);
  if (const auto refusal = half.peersRefusal()) {
    return failed({refusal->code(), fmt::format("it gave up: {}", refusal->message())});
  }
  const Status health = peer.half->health();
  if (health.isOk()) {
    return std::nullopt;
  }
  return half.peersLastWord().value_or(health);
}

Status ShmLateLinks::ask(Peer& peer) {
  const auto theirs = decodeShmAddress(peer.address);
  SW_RETURN_IF_ERROR(theirs.status());
  ShmFabric& fabric = *inbox_->fabric();
  if (theirs->owner.process != fabric.address().process) {
    peer.request = fabric.linkSoon(theirs->owner, inbox_->jobToken(), [wakeup = wakeup_] { wakeup->ring(); });
  }
  peer.state = State::kAsked;
  return Status::ok();
}

Status ShmLateLinks::attach(Rank rank, Peer& peer) {
  if (peer.request != nullptr) {
    const auto link = peer.request->outcome();
    if (!link.has_value()) {
      return Status::ok();
    }
    SW_RETURN_IF_ERROR(link->status());
  }
  // The request holds the link until the half has it.
  auto half = endpoint_->attach(rank, peer.address, peer.who, Clock::now());
  if (!half.isOk()) {
    const bool isGone = peer.request != nullptr && (**peer.request->outcome())->isHungUp();
    return isGone ? Status{StatusCode::kPeerFailed, "its process ended, or has no groups any more"} : half.status();
  }
  peer.half = std::move(*half);
  peer.state = State::kAttached;
  return Status::ok();
}

std::string ShmLateLinks::whyNotYet(Rank peer) const {
  const Peer& each = peers_[static_cast<std::size_t>(peer)];
  switch (each.state) {
    case State::kWanted:
    case State::kAsked:
      return fmt::format("{} does not answer at the Unix socket of its process (stopped?)", each.who);
    case State::kAttached:
      return fmt::format("{} has not joined this rank in turn (stopped, or its program holds all its cores?)",
                         each.who);
    default:
      return {};
  }
}

}  // namespace

std::unique_ptr<LateLinks> makeShmLateLinks(std::unique_ptr<Endpoint> endpoint, std::shared_ptr<Inbox> inbox,
                                            std::vector<LatePeer> peers) {
  return std::make_unique<ShmLateLinks>(std::move(endpoint), std::move(inbox), std::move(peers));
}

}  // namespace shardwire::internal
