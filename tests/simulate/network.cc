// One Direction has everything between two ranks in one direction: the frames of each lane with their times of arrival,
// the exposed memory of the sender, fetches under way, and the sender's end. A SimulatedConnection is the view of one
// rank on both directions. No event delivers a frame: a reader sees a frame from the time of arrival on, and an event
// only rings the reader's bell. So a poll at that time may see a frame before the ring, as in the product.
#include "tests/simulate/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "backend/exec/frame.h"

namespace shardwire::simulate {
namespace {

using namespace internal;

// A dead host is seen by its silence, as over tcp.
constexpr Time kSilence = 8 * kSecond;
constexpr std::size_t kFrameHeader = 8;
constexpr std::size_t kMostRequests = 16;
constexpr std::array<const char*, kNumLanes> kLaneNames = {"control", "bulk", "point"};

std::size_t at(Lane lane) {
  return static_cast<std::size_t>(lane);
}

std::size_t roomOf(std::size_t frameBytes) {
  return (frameBytes + kFrameHeader + 7) & ~std::size_t{7};
}

// "staged bytes of #3".
std::string describeFrame(std::span<const std::byte> frame) {
  const std::optional<FrameKind> kind = kindOf(frame);
  if (!kind.has_value()) {
    return "an unreadable frame";
  }
  std::string text(frameKindName(*kind));
  const bool isOfOperation = *kind <= FrameKind::kCancel || *kind == FrameKind::kStaged;
  if (isOfOperation && frame.size() >= sizeof(FrameStart) + sizeof(std::uint64_t)) {
    std::uint64_t seq = 0;
    std::memcpy(&seq, frame.data() + sizeof(FrameStart), sizeof seq);
    text += fmt::format(" of activity {}", seq);
  }
  return text;
}

}  // namespace

struct Network::Direction {
  struct Frame {
    std::vector<std::byte> bytes;
    std::uint64_t number = 0;  // in the order of sending, over all lanes
    Time arrives = 0;
  };
  struct LaneQueue {
    std::deque<Frame> frames;
    std::size_t used = 0;  // bytes of frames, until the sender knows of the release
    Time lastArrival = 0;
    Time fullUntil = 0;
    std::vector<std::byte> reserved;
  };
  struct Exposure {
    std::uint32_t space = 0;
    const std::byte* bytes = nullptr;
    std::size_t size = 0;
  };
  // First a request under way to the owner, then bytes under way to the requester.
  struct Fetch {
    std::uint32_t space = 0;
    std::vector<MemoryRun> runs;
    FetchCount* count = nullptr;
    Time arrives = 0;
    std::vector<std::byte> bytes;  // of the answer, which arrives in pieces
    std::size_t done = 0;
  };

  std::array<LaneQueue, kNumLanes> lanes;
  std::uint64_t lastSent = 0;
  std::uint64_t lastTaken = 0;      // the largest number of a frame that the receiver took
  std::vector<Exposure> exposures;  // of the sender, for the receiver
  std::uint32_t nextSpace = kFirstExposure;
  std::deque<Fetch> requests;  // of the sender, for the receiver's memory
  std::deque<Fetch> answers;   // of the sender's memory, for the receiver
  Time withdrawnAt = kNever;   // from here on the receiver sees that the sender stopped
  bool hasStopped = false;     // the sender did
  std::shared_mutex readers;
  End end = End::kNone;
  Time endSeenAt = kNever;
  bool isCut = false;
  std::string broken;
  Time heldUntil = 0;

  Time lastArrival() const {
    Time last = 0;
    for (const LaneQueue& lane : lanes) {
      last = std::max(last, lane.lastArrival);
    }
    return last;
  }

  // The frames of a connection leave in one stream: those before a frame that has arrived arrive, too.
  void loseFramesUnderWay(Time now) {
    std::uint64_t lastArrived = lastTaken;
    for (const LaneQueue& lane : lanes) {
      for (const Frame& frame : lane.frames) {
        lastArrived = frame.arrives <= now ? std::max(lastArrived, frame.number) : lastArrived;
      }
    }
    for (LaneQueue& lane : lanes) {
      for (Frame& frame : lane.frames) {
        frame.arrives = frame.number > lastArrived ? kNever : frame.arrives;
      }
    }
  }
};

// ---- one rank's end of a link

class SimulatedConnection final : public Connection {
 public:
  SimulatedConnection(Network& network, Rank self, Rank peer)
      : network_(network),
        self_(self),
        peer_(peer),
        out_(network.direction(self, peer)),
        in_(network.direction(peer, self)),
        isNear_(network.areOnOneHost(self, peer)) {}

  ~SimulatedConnection() override {
    if (!process().isDead()) {
      network_.noteEnd(self_, peer_, End::kLeft);
    }
  }

  Rank peer() const override { return peer_; }
  const char* transportName() const override { return "simulated"; }
  std::size_t maxFrameBytes(Lane lane) const override {
    return network_.options_.capacities[at(lane)] / 4 - kFrameHeader;
  }

  std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) override {
    Network::Direction::LaneQueue& queue = out_.lanes[at(lane)];
    Random& random = network_.world_.random();
    if (queue.fullUntil <= now() && network_.options_.fullPercent > 0 && random.chance(network_.options_.fullPercent)) {
      queue.fullUntil = now() + random.between(kMicrosecond, kMillisecond);
      network_.ringAt(queue.fullUntil, self_);
    }
    const std::size_t left = network_.options_.capacities[at(lane)] - queue.used;
    if (roomOf(minBytes) > left || queue.fullUntil > now()) {
      return {};
    }
    queue.reserved.assign(std::min({maxBytes, maxFrameBytes(lane), left - kFrameHeader}), std::byte{0xee});
    return queue.reserved;
  }

  void commit(Lane lane, std::size_t bytes) override {
    Network::Direction::LaneQueue& queue = out_.lanes[at(lane)];
    SW_CHECK(bytes <= queue.reserved.size());
    if (bytes == 0 || process().isDead()) {
      return;
    }
    Network::Direction::Frame frame{
        {queue.reserved.begin(), queue.reserved.begin() + static_cast<std::ptrdiff_t>(bytes)}, ++out_.lastSent, 0};
    frame.arrives = std::max({queue.lastArrival, arrivalOf(bytes), out_.heldUntil});
    queue.lastArrival = frame.arrives;
    queue.used += roomOf(bytes);
    if (out_.isCut) {
      frame.arrives = kNever;
    }
    network_.world_.note(now(), self_, "sends {} to rank {}: {} bytes on the {} lane, {}", describeFrame(frame.bytes),
                         peer_, bytes, kLaneNames[at(lane)],
                         out_.isCut ? "lost" : "arriving at " + inMilliseconds(network_.world_.elapsed(frame.arrives)));
    if (!out_.isCut) {
      network_.ringAt(frame.arrives, peer_);
    }
    queue.frames.push_back(std::move(frame));
    network_.countFrame(self_);
  }

  std::span<const std::byte> peek(Lane lane) override {
    auto& frames = in_.lanes[at(lane)].frames;
    return frames.empty() || frames.front().arrives > now() ? std::span<const std::byte>() : frames.front().bytes;
  }

  void release(Lane lane) override {
    Network::Direction::LaneQueue& queue = in_.lanes[at(lane)];
    SW_CHECK(!queue.frames.empty());
    const std::size_t room = roomOf(queue.frames.front().bytes.size());
    network_.world_.note(now(), self_, "takes {} of rank {}", describeFrame(queue.frames.front().bytes), peer_);
    in_.lastTaken = std::max(in_.lastTaken, queue.frames.front().number);
    queue.frames.pop_front();
    if (!process().isDead() && !in_.isCut) {
      network_.world_.at(arrivalOf(0), [network = &network_, queue = &queue, room, peer = peer_] {
        queue->used -= room;
        network->processes_[static_cast<std::size_t>(peer)]->ringIfArmed();
      });
    }
  }

  Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) override {
    Random& random = network_.world_.random();
    *address = {kVirtualSpace, reinterpret_cast<std::uint64_t>(bytes)};
    if (!random.chance(network_.options_.exposedPercent)) {
      return Reach::kNone;
    }
    if (isNear_) {
      return random.chance(50) ? Reach::kDirect : Reach::kCopy;
    }
    address->space = out_.nextSpace++;
    out_.exposures.push_back({address->space, static_cast<const std::byte*>(bytes), size});
    return Reach::kFetch;
  }
  void conceal(const RemoteAddress& address) override {
    std::erase_if(out_.exposures, [&](const auto& each) { return each.space == address.space; });
  }
  ReadLimits readLimits() const override { return {.isWire = !isNear_}; }

  const std::byte* map(const RemoteAddress& address, std::size_t) override {
    return isNear_ && address.space == kVirtualSpace ? reinterpret_cast<const std::byte*>(address.value) : nullptr;
  }
  Status read(std::span<const MemoryRun> runs) override {
    if (hasWithdrawn()) {
      return {StatusCode::kPeerFailed, fmt::format("rank {} (simulated) failed and has its tensors back", peer_)};
    }
    for (const MemoryRun& run : runs) {
      std::memcpy(run.local, reinterpret_cast<const std::byte*>(run.remote), run.bytes);
    }
    return Status::ok();
  }
  // The clocks of two ranks may differ by a turn, and memory given back is never read.
  bool hasWithdrawn() const override { return isNear_ ? in_.hasStopped : in_.withdrawnAt <= now(); }
  std::shared_mutex* readersLock() override { return isNear_ ? &in_.readers : nullptr; }

  bool fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) override {
    SW_CHECK(!isNear_ && !runs.empty());
    if (out_.requests.size() >= kMostRequests || out_.hasStopped) {
      return false;
    }
    const Time arrives = out_.isCut || process().isDead() ? kNever : std::max(arrivalOf(0), out_.heldUntil);
    ++count->pending;
    out_.requests.push_back({space, {runs.begin(), runs.end()}, count, arrives, {}, 0});
    network_.world_.note(now(), self_, "requests {} runs of rank {}'s memory {}", runs.size(), peer_, space);
    network_.ringAt(arrives, peer_);
    return true;
  }
  bool stopFetches() override {
    if (!std::exchange(out_.hasStopped, true)) {
      out_.withdrawnAt = isNear_ || out_.isCut ? kNever : arrivalOf(0);
      out_.requests.clear();  // later answers are dropped
      out_.answers.clear();
      in_.answers.clear();
      in_.requests.clear();
      network_.world_.note(now(), self_, "stops fetches with rank {}", peer_);
    }
    return true;
  }

  Status health() override {
    if (!in_.broken.empty()) {
      return {StatusCode::kPeerFailed, in_.broken};
    }
    if (in_.endSeenAt > now()) {
      return Status::ok();
    }
    const char* const how = in_.end == End::kLeft   ? "left the group"
                            : in_.end == End::kDied ? "died"
                                                    : "died, or its network connection failed";
    return {StatusCode::kPeerFailed, fmt::format("rank {} (simulated) {}", peer_, how)};
  }
  std::string describe() const override { return fmt::format("rank {}: simulated", peer_); }

  // For the wire: serves the peer's requests, and takes the pieces of what was fetched.
  bool poll() {
    bool moved = false;
    while (!in_.requests.empty() && in_.requests.front().arrives <= now() && !out_.hasStopped) {
      serve(std::move(in_.requests.front()));
      in_.requests.pop_front();
      moved = true;
    }
    while (!in_.answers.empty() && in_.answers.front().arrives <= now() && !out_.hasStopped) {
      take(in_.answers.front());
      if (in_.answers.front().done == in_.answers.front().bytes.size()) {
        --in_.answers.front().count->pending;
        in_.answers.pop_front();
      }
      moved = true;
    }
    return moved;
  }

 private:
  Process& process() const { return *network_.processes_[static_cast<std::size_t>(self_)]; }
  Time now() const { return std::max(process().time(), network_.world_.now()); }
  // A short write: bytes behind the first arrive later, and the frame arrives whole.
  Time arrivalOf(std::size_t bytes) const {
    Time arrives = now() + network_.drawDelay(self_, peer_);
    const std::size_t piece = network_.options_.shortWriteBytes;
    for (std::size_t sent = piece; piece != 0 && sent < bytes && sent < 16 * piece; sent += piece) {
      arrives += network_.drawDelay(self_, peer_);
    }
    return arrives;
  }

  void serve(Network::Direction::Fetch fetch) {
    for (const MemoryRun& run : fetch.runs) {
      const auto begin = reinterpret_cast<const std::byte*>(run.remote);
      const bool isExposed = std::any_of(out_.exposures.begin(), out_.exposures.end(), [&](const auto& each) {
        return each.space == fetch.space && begin >= each.bytes && begin + run.bytes <= each.bytes + each.size;
      });
      if (!isExposed) {
        out_.broken = fmt::format("rank {} (simulated) refused a fetch: memory {} is not exposed", self_, fetch.space);
        network_.world_.note(now(), self_, "refuses a fetch of rank {}", peer_);
        return;
      }
      fetch.bytes.insert(fetch.bytes.end(), begin, begin + run.bytes);
    }
    fetch.arrives = std::max({arrivalOf(0), out_.heldUntil, out_.answers.empty() ? 0 : out_.answers.back().arrives});
    fetch.arrives = out_.isCut || process().isDead() ? kNever : fetch.arrives;
    network_.world_.note(now(), self_, "sends {} fetched bytes to rank {}", fetch.bytes.size(), peer_);
    network_.ringAt(fetch.arrives, peer_);
    out_.answers.push_back(std::move(fetch));
  }

  void take(Network::Direction::Fetch& fetch) {
    const std::size_t piece = network_.options_.shortWriteBytes;
    const std::size_t end =
        piece == 0 ? fetch.bytes.size() : std::min(fetch.bytes.size(), std::max(fetch.done + piece, fetch.done + 1));
    std::size_t runBegin = 0;
    for (const MemoryRun& run : fetch.runs) {
      const std::size_t from = std::max(fetch.done, runBegin);
      const std::size_t to = std::min(end, runBegin + run.bytes);
      if (from < to) {
        std::memcpy(run.local + (from - runBegin), fetch.bytes.data() + from, to - from);
      }
      runBegin += run.bytes;
    }
    fetch.done = end;
    if (end < fetch.bytes.size()) {
      fetch.arrives = now() + network_.world_.random().between(kMicrosecond, 50 * kMicrosecond);
      network_.ringAt(fetch.arrives, self_);
    }
  }

  Network& network_;
  const Rank self_;
  const Rank peer_;
  Network::Direction& out_;
  Network::Direction& in_;
  const bool isNear_;
};

class SimulatedWire final : public Wire {
 public:
  explicit SimulatedWire(std::vector<SimulatedConnection*> connections) : connections_(std::move(connections)) {}
  bool poll() override {
    bool moved = false;
    for (SimulatedConnection* const connection : connections_) {
      moved |= connection->poll();
    }
    return moved;
  }
  int readinessFd() const override { return -1; }

 private:
  const std::vector<SimulatedConnection*> connections_;
};

// ---- the network

Network::Network(World& world, NetworkOptions options, std::vector<std::int32_t> hosts)
    : world_(world),
      options_(options),
      hosts_(std::move(hosts)),
      size_(static_cast<int>(hosts_.size())),
      dooms_(hosts_.size()),
      ends_(hosts_.size(), End::kNone) {
  for (std::size_t i = 0; i < hosts_.size() * hosts_.size(); ++i) {
    directions_.push_back(std::make_unique<Direction>());
  }
}

Network::~Network() = default;

Network::Direction& Network::direction(Rank from, Rank to) {
  return *directions_[static_cast<std::size_t>(from * size_ + to)];
}

const Network::Direction& Network::direction(Rank from, Rank to) const {
  return *directions_[static_cast<std::size_t>(from * size_ + to)];
}

bool Network::areOnOneHost(Rank a, Rank b) const {
  return hosts_[static_cast<std::size_t>(a)] == hosts_[static_cast<std::size_t>(b)];
}

Peers Network::peersOf(Rank rank) {
  Peers peers;
  std::vector<SimulatedConnection*> all;
  for (Rank peer = 0; peer < size_; ++peer) {
    auto& place = peers.connections.emplace_back();
    if (peer != rank) {
      auto made = std::make_unique<SimulatedConnection>(*this, rank, peer);
      all.push_back(made.get());
      place = std::move(made);
    }
    peers.names.push_back({fmt::format("host{}", hosts_[static_cast<std::size_t>(peer)]), 0});
  }
  peers.wires.push_back(std::make_unique<SimulatedWire>(std::move(all)));
  peers.whyNotFaster.resize(static_cast<std::size_t>(size_));
  peers.doorbell = processes_[static_cast<std::size_t>(rank)]->makeDoorbell();
  peers.hosts = hosts_;
  peers.groupId = "simulated";
  return peers;
}

Time Network::drawDelay(Rank a, Rank b) {
  Random& random = world_.random();
  if (options_.spikePercent > 0 && random.chance(options_.spikePercent)) {
    return random.between(kMicrosecond, options_.longestSpike);
  }
  return areOnOneHost(a, b) ? random.between(100, 3 * kMicrosecond)
                            : random.between(5 * kMicrosecond, 80 * kMicrosecond);
}

void Network::ringAt(Time when, Rank rank) {
  if (when != kNever) {
    world_.at(when, [this, rank] { processes_[static_cast<std::size_t>(rank)]->ringIfArmed(); });
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
  const Time now = std::max(processes_[static_cast<std::size_t>(from)]->time(), world_.now());
  if (end == End::kHostDied) {
    way.loseFramesUnderWay(now);
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

void Network::endProcess(Rank rank, End end) {
  Process& process = *processes_[static_cast<std::size_t>(rank)];
  if (process.isDead() || process.isOver()) {
    return;
  }
  world_.note(std::max(process.time(), world_.now()), rank, "{}",
              end == End::kHostDied ? "loses its host" : "is killed");
  process.die();
  ends_[static_cast<std::size_t>(rank)] = end;
  for (Rank peer = 0; peer < size_; ++peer) {
    if (peer != rank) {
      noteEnd(rank, peer, end);
    }
  }
}

void Network::endProcessAfter(Rank rank, int numFrames, End end) {
  dooms_[static_cast<std::size_t>(rank)] = {numFrames, end};
}

void Network::countFrame(Rank rank) {
  ++numFrames_;
  Doom& doom = dooms_[static_cast<std::size_t>(rank)];
  if (doom.framesLeft > 0 && --doom.framesLeft == 0) {
    endProcess(rank, doom.end);
  }
}

void Network::cut(Rank a, Rank b) {
  world_.note(world_.now(), -1, "the link between ranks {} and {} is cut", a, b);
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    Direction& way = direction(from, to);
    if (way.end == End::kNone && !way.isCut) {
      noteEnd(from, to, End::kHostDied);
      way.isCut = true;
    }
  }
}

void Network::holdUntil(Rank a, Rank b, Time until) {
  world_.note(world_.now(), -1, "nothing passes between ranks {} and {} before {}", a, b,
              inMilliseconds(world_.elapsed(until)));
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    Direction& way = direction(from, to);
    way.heldUntil = std::max(way.heldUntil, until);
  }
}

std::string Network::findLeftover() const {
  for (Rank from = 0; from < size_; ++from) {
    for (Rank to = 0; to < size_; ++to) {
      const Direction& way = direction(from, to);
      if (!way.exposures.empty()) {
        return fmt::format("rank {} still exposes memory to rank {}", from, to);
      }
      if (!way.requests.empty() || !way.answers.empty()) {
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
