// The network makes the connections of each rank, draws the delays, and applies the faults: ends of processes, of hosts
// and of links, and times in which nothing passes. findLeftover() looks for what a group left in the links.
#include "tests/simulate/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/simulate/connection.h"
#include "tests/simulate/late_links.h"

namespace shardwire::simulate {

using namespace internal;

namespace {

// A dead host is seen by its silence, as over tcp.
constexpr Time kSilence = 8 * kSecond;
constexpr Time kShortestStall = 2 * kSecond;
constexpr Time kLongestStall = 5 * kSecond;

}  // namespace

Network::Network(World& world, NetworkOptions options, std::vector<std::int32_t> hosts, std::size_t group,
                 std::string label)
    : world_(world),
      options_(options),
      hosts_(std::move(hosts)),
      size_(static_cast<int>(hosts_.size())),
      group_(group),
      label_(std::move(label)),
      connections_(hosts_.size()) {
  for (std::size_t i = 0; i < hosts_.size() * hosts_.size(); ++i) {
    directions_.push_back(std::make_unique<Direction>());
  }
}

Network::~Network() = default;

Direction& Network::direction(Rank from, Rank to) {
  return *directions_[static_cast<std::size_t>(from * size_ + to)];
}

const Direction& Network::direction(Rank from, Rank to) const {
  return *directions_[static_cast<std::size_t>(from * size_ + to)];
}

bool Network::areOnOneHost(Rank a, Rank b) const {
  return hosts_[static_cast<std::size_t>(a)] == hosts_[static_cast<std::size_t>(b)];
}

bool Network::servesFetches(Rank a, Rank b) const {
  const FetchOptions& fetches = options_.fetches;
  const auto pair = static_cast<std::uint64_t>(std::min(a, b) * size_ + std::max(a, b));
  return !fetches.isDrawn || !Random(testing::mix64(fetches.seed) + pair).chance(fetches.withoutPercent);
}

bool Network::isLate(Rank a, Rank b) const {
  return options_.lateness == Lateness::kAll ||
         (options_.lateness != Lateness::kNone && areOnOneHost(a, b) == (options_.lateness == Lateness::kSameHost));
}

Time Network::nowOf(Rank rank) const {
  return std::max(processes_[static_cast<std::size_t>(rank)]->time(), world_.now());
}

Peers Network::peersOf(Rank rank, const Options& options) {
  Peers peers;
  for (Rank peer = 0; peer < size_; ++peer) {
    auto& place = peers.connections.emplace_back();
    if (peer != rank && isLate(rank, peer)) {
      place = std::make_unique<UnjoinedConnection>(peer, "simulated", options);
    } else if (peer != rank) {
      place = std::make_unique<SimulatedConnection>(*this, rank, peer);
    }
    peers.names.push_back({fmt::format("host{}", hosts_[static_cast<std::size_t>(peer)]), 0});
  }
  peers.wires.push_back(std::make_unique<SimulatedWire>(*this, rank));
  if (options_.lateness != Lateness::kNone) {
    peers.late = std::make_unique<SimulatedLateLinks>(*this, rank);
  }
  peers.whyNotFaster.resize(static_cast<std::size_t>(size_));
  peers.doorbell = processes_[static_cast<std::size_t>(rank)]->makeDoorbell(group_);
  peers.hosts = hosts_;
  peers.groupId = "simulated" + label_;
  return peers;
}

Time Network::drawDelay(Rank a, Rank b) {
  Random& random = world_.random();
  if (numStalls_ < options_.numStalls && random.chance(2)) {
    ++numStalls_;
    return random.between(kShortestStall, kLongestStall);
  }
  if (options_.spikePercent > 0 && random.chance(options_.spikePercent)) {
    return random.between(kMicrosecond, options_.longestSpike);
  }
  return areOnOneHost(a, b) ? random.between(100, 3 * kMicrosecond)
                            : random.between(5 * kMicrosecond, 80 * kMicrosecond);
}

Time Network::drawWireDelay() {
  Random& random = world_.random();
  return options_.spikePercent > 0 && random.chance(options_.spikePercent)
             ? random.between(kMicrosecond, options_.longestSpike)
             : random.between(5 * kMicrosecond, 80 * kMicrosecond);
}

void Network::ringAt(Time when, Rank rank) {
  if (when != kNever) {
    world_.at(when, [this, rank, when, numEvents = world_.numEvents()] {
      processes_[static_cast<std::size_t>(rank)]->ringIfArmed(group_, when, numEvents);
    });
  }
}

void Network::ringForNewsAt(Time when, Rank rank) {
  if (when != kNever) {
    world_.at(when, [this, rank] { processes_[static_cast<std::size_t>(rank)]->ringForNews(group_); });
  }
}

void Network::checkWakesAt(Time when, Rank from, Rank to, std::uint64_t frame) {
  world_.at(when, [this, when, from, to, frame] {
    const auto& frames = direction(from, to).lanes[static_cast<std::size_t>(Lane::kControl)].frames;
    const auto& joined = connections_[static_cast<std::size_t>(to)];
    const bool isJoined = std::ranges::any_of(joined, [&](const auto* each) { return each->peer() == from; });
    // Neither taken, nor lost with the sender's host.
    if (isJoined && !frames.empty() && frames.front().number <= frame && frames.front().arrives <= when) {
      processes_[static_cast<std::size_t>(to)]->checkWakes(
          group_, when, [&] { return fmt::format("{} of rank {}", describeFrame(frames.front().bytes), from); });
    }
  });
}

void Network::checkServedAt(Time when, Rank from, Rank to) {
  world_.at(when, [this, when, from, to] {
    const auto& requests = direction(from, to).requests;
    const auto& joined = connections_[static_cast<std::size_t>(to)];
    const bool isJoined = std::ranges::any_of(joined, [&](const auto* each) { return each->peer() == from; });
    if (isJoined && !direction(to, from).hasStopped && !requests.empty() && requests.front().arrives <= when) {
      processes_[static_cast<std::size_t>(to)]->checkWakes(
          group_, when, [&] { return fmt::format("a request for memory of rank {}", from); });
    }
  });
}

void Network::recordFrame(Rank from, Rank to, Time arrives, const std::string& what) {
  if (Recording* const recording = world_.recording()) {
    const auto processOf = [&](Rank rank) { return processes_[static_cast<std::size_t>(rank)]->rank(); };
    recording->frames.push_back({world_.elapsed(nowOf(from)), world_.elapsed(arrives), processOf(from), processOf(to),
                                 fmt::format("{}{}{}", label_, label_.empty() ? "" : ": ", what)});
  }
}

// ---- ends

void Network::noteEnd(Rank from, Rank to, End end) {
  Direction& way = direction(from, to);
  if (way.end != End::kNone || way.isCut) {
    return;
  }
  way.end = end;
  Random& random = world_.random();
  const Time now = nowOf(from);
  if (end == End::kHostDied) {
    way.loseFramesUnderWay(now);
    for (Direction::Fetch& each : way.answers) {
      each.arrives = options_.fetches.isDrawn && each.arrives > now ? kNever : each.arrives;
    }
    way.endSeenAt = now + kSilence + random.between(0, kSecond);
  } else {
    // Behind the last frame.
    way.endSeenAt = std::max({now + drawDelay(from, to), way.lastArrival(), way.heldUntil});
  }
  // Nobody rings for a peer on the same host.
  if (!areOnOneHost(from, to)) {
    ringAt(way.endSeenAt, to);
  }
}

void Network::end(Rank rank, End end) {
  for (Rank peer = 0; rank >= 0 && peer < size_; ++peer) {
    if (peer != rank) {
      noteEnd(rank, peer, end);
    }
  }
}

void Network::countFrame(Rank rank) {
  ++numFrames_;
  processes_[static_cast<std::size_t>(rank)]->countFrame();
}

void Network::cut(Rank a, Rank b) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    if (from < 0 || to < 0) {
      continue;
    }
    Direction& way = direction(from, to);
    if (way.end == End::kNone && !way.isCut) {
      noteEnd(from, to, End::kHostDied);
      way.isCut = true;
    }
  }
}

void Network::holdUntil(Rank a, Rank b, Time until) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    if (from >= 0 && to >= 0) {
      Direction& way = direction(from, to);
      way.heldUntil = std::max(way.heldUntil, until);
    }
  }
}

bool Network::hasConnections() const {
  return std::ranges::any_of(connections_, [](const auto& each) { return !each.empty(); });
}

std::string Network::findLeftover() const {
  if (!pins_.empty()) {
    return fmt::format("{} tensors are still pinned", pins_.size());
  }
  for (Rank from = 0; from < size_; ++from) {
    for (Rank to = 0; to < size_; ++to) {
      const Direction& way = direction(from, to);
      if (!way.exposures.empty()) {
        return fmt::format("rank {} still exposes memory to rank {}", from, to);
      }
      if (!way.requests.empty() || !way.serving.empty() || !way.answers.empty()) {
        return fmt::format("a fetch between ranks {} and {} is still under way", from, to);
      }
      for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
        for (const auto& frame : way.lanes[lane].frames) {
          if (static_cast<Lane>(lane) != Lane::kControl) {
            return fmt::format("rank {} has not taken a frame of rank {} on the {} lane: {}", to, from,
                               kLaneNames[lane], describeFrame(frame.bytes));
          }
        }
      }
    }
  }
  return "";
}

}  // namespace shardwire::simulate
