#include "tests/simulate/late_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "tests/simulate/connection.h"

namespace shardwire::simulate {

SimulatedLateLinks::SimulatedLateLinks(Network& network, Rank self)
    : network_(network), self_(self), states_(static_cast<std::size_t>(network.size_)) {
  for (Rank peer = 0; peer < network.size_; ++peer) {
    states_[static_cast<std::size_t>(peer)] =
        peer != self && network.isLate(self, peer) ? State::kIdle : State::kNotLate;
  }
}

// The peers without a link see the end of this rank when they request a link.
SimulatedLateLinks::~SimulatedLateLinks() {
  for (Rank peer = 0; peer < network_.size_; ++peer) {
    const State state = states_[static_cast<std::size_t>(peer)];
    const bool isDead = network_.processes_[static_cast<std::size_t>(self_)]->isDead();
    if (!isDead && (state == State::kIdle || state == State::kWanted)) {
      network_.noteEnd(self_, peer, End::kLeft);
    }
  }
}

Time SimulatedLateLinks::arrivalAt(Rank peer) const {
  const Direction& out = network_.direction(self_, peer);
  return out.isCut ? kNever : std::max(network_.nowOf(self_) + network_.drawDelay(self_, peer), out.heldUntil);
}

void SimulatedLateLinks::want(Rank peer) {
  State& state = states_[static_cast<std::size_t>(peer)];
  if (state != State::kIdle) {
    return;
  }
  state = State::kWanted;
  Direction& out = network_.direction(self_, peer);
  out.requestArrives = arrivalAt(peer);
  network_.note(self_, "requests a link to rank {}", peer);
  network_.ringForNewsAt(out.requestArrives, peer);
}

// The peer requested a link or consented; or this rank requested a link, and nobody listens. The silence of a dead host
// is not an answer.
bool SimulatedLateLinks::isDue(Rank peer) const {
  const State state = states_[static_cast<std::size_t>(peer)];
  const Direction& in = network_.direction(peer, self_);
  const Time now = network_.nowOf(self_);
  const Time arrives = std::min(in.requestArrives, in.consentArrives);
  // The end comes behind all that the peer sent before.
  const bool isGone = (in.end == End::kLeft || in.end == End::kDied) && in.endSeenAt <= now && arrives == kNever;
  return (state == State::kIdle && in.requestArrives <= now) || (state == State::kWanted && (isGone || arrives <= now));
}

std::vector<internal::LateLinks::News> SimulatedLateLinks::poll() {
  std::vector<News> news;
  for (Rank peer = 0; peer < network_.size_; ++peer) {
    if (isDue(peer)) {
      states_[static_cast<std::size_t>(peer)] = State::kOver;
      auto outcome = join(peer);
      news.push_back({peer, std::move(outcome)});
    }
  }
  return news;
}

Result<std::unique_ptr<internal::Connection>> SimulatedLateLinks::join(Rank peer) {
  const Direction& in = network_.direction(peer, self_);
  const Time now = network_.nowOf(self_);
  if (std::min(in.requestArrives, in.consentArrives) > now) {
    network_.note(self_, "cannot be joined to rank {}", peer);
    return Status{StatusCode::kPeerFailed, fmt::format("rank {} (simulated) {} before it was joined to this rank", peer,
                                                       in.end == End::kLeft ? "left" : "died or left")};
  }
  network_.note(self_, "is joined to rank {}", peer);
  if (in.requestArrives <= now) {
    Direction& out = network_.direction(self_, peer);
    out.consentArrives = arrivalAt(peer);
    network_.ringForNewsAt(out.consentArrives, peer);
  }
  return std::unique_ptr<internal::Connection>(std::make_unique<SimulatedConnection>(network_, self_, peer));
}

bool SimulatedLateLinks::hasNews() const {
  for (Rank peer = 0; peer < network_.size_; ++peer) {
    if (isDue(peer)) {
      return true;
    }
  }
  return false;
}

bool SimulatedLateLinks::isAnyUnderWay() const {
  return std::ranges::find(states_, State::kWanted) != states_.end();
}

std::string SimulatedLateLinks::whyNotYet(Rank peer) const {
  return states_[static_cast<std::size_t>(peer)] == State::kWanted
             ? fmt::format("rank {} (simulated) does not answer (stopped?)", peer)
             : std::string();
}

}  // namespace shardwire::simulate
