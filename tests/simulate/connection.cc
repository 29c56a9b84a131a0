// The lanes first: reserve() and commit() put frames into the outgoing direction with a drawn time of arrival, peek()
// and release() take frames of the incoming direction. Then memory: ranks of one host read at once; others fetch, and
// poll() serves the requests and takes the answers (connection_fetches.cc). health() shows the peer's end from the time
// on when this rank can know of the end.
#include "tests/simulate/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace shardwire::simulate {

using namespace internal;

namespace {

constexpr std::size_t kFrameHeader = 8;

std::size_t at(Lane lane) {
  return static_cast<std::size_t>(lane);
}

std::size_t roomOf(std::size_t frameBytes) {
  return (frameBytes + kFrameHeader + 7) & ~std::size_t{7};
}

}  // namespace

SimulatedConnection::SimulatedConnection(Network& network, Rank self, Rank peer)
    : network_(network),
      self_(self),
      peer_(peer),
      out_(network.direction(self, peer)),
      in_(network.direction(peer, self)),
      isNear_(network.areOnOneHost(self, peer)) {
  network.connections_[static_cast<std::size_t>(self)].push_back(this);
}

SimulatedConnection::~SimulatedConnection() {
  std::erase(network_.connections_[static_cast<std::size_t>(self_)], this);
  if (!process().isDead()) {
    network_.noteEnd(self_, peer_, End::kLeft);
  }
}

std::size_t SimulatedConnection::maxFrameBytes(Lane lane) const {
  return network_.options_.capacities[at(lane)] / 4 - kFrameHeader;
}

std::span<std::byte> SimulatedConnection::reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) {
  Direction::LaneQueue& queue = out_.lanes[at(lane)];
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

void SimulatedConnection::commit(Lane lane, std::size_t bytes) {
  Direction::LaneQueue& queue = out_.lanes[at(lane)];
  SW_CHECK(bytes <= queue.reserved.size());
  if (bytes == 0 || process().isDead()) {
    return;
  }
  Direction::Frame frame{
      {queue.reserved.begin(), queue.reserved.begin() + static_cast<std::ptrdiff_t>(bytes)}, ++out_.lastSent, 0};
  frame.arrives = std::max({queue.lastArrival, arrivalOf(bytes), out_.heldUntil});
  queue.lastArrival = frame.arrives;
  queue.used += roomOf(bytes);
  if (out_.isCut) {
    frame.arrives = kNever;
  }
  if (network_.isTraced()) {
    const std::string what = describeFrame(frame.bytes);
    network_.note(self_, "sends {} to rank {}: {} bytes on the {} lane, {}", what, peer_, bytes, kLaneNames[at(lane)],
                  out_.isCut ? "lost" : "arriving at " + inMilliseconds(network_.world_.elapsed(frame.arrives)));
    network_.recordFrame(self_, peer_, frame.arrives, fmt::format("{}, {} bytes", what, bytes));
  }
  if (!out_.isCut) {
    network_.ringAt(frame.arrives, peer_);
    if (lane == Lane::kControl) {
      network_.checkWakesAt(frame.arrives, self_, peer_, frame.number);
    }
  }
  queue.frames.push_back(std::move(frame));
  network_.countFrame(self_);
}

std::span<const std::byte> SimulatedConnection::peek(Lane lane) {
  auto& frames = in_.lanes[at(lane)].frames;
  return frames.empty() || frames.front().arrives > now() ? std::span<const std::byte>() : frames.front().bytes;
}

void SimulatedConnection::release(Lane lane) {
  Direction::LaneQueue& queue = in_.lanes[at(lane)];
  SW_CHECK(!queue.frames.empty());
  const std::size_t room = roomOf(queue.frames.front().bytes.size());
  if (network_.isTraced()) {
    network_.note(self_, "takes {} of rank {}", describeFrame(queue.frames.front().bytes), peer_);
  }
  in_.lastTaken = std::max(in_.lastTaken, queue.frames.front().number);
  queue.frames.pop_front();
  if (!process().isDead() && !in_.isCut) {
    network_.world_.at(arrivalOf(0), [network = &network_, queue = &queue, room, peer = peer_] {
      queue->used -= room;
      network->ringIfArmed(peer);
    });
  }
}

Reach SimulatedConnection::expose(const void* bytes, std::size_t size, RemoteAddress* address) {
  Random& random = network_.world_.random();
  *address = {kVirtualSpace, reinterpret_cast<std::uint64_t>(bytes)};
  if (!random.chance(network_.options_.exposedPercent)) {
    return Reach::kNone;
  }
  if (isNear_) {
    return random.chance(50) ? Reach::kDirect : Reach::kCopy;
  }
  if (!network_.servesFetches(self_, peer_)) {
    return Reach::kNone;
  }
  address->space = out_.nextSpace++;
  out_.exposures.push_back({address->space, static_cast<const std::byte*>(bytes), size});
  return Reach::kFetch;
}

void SimulatedConnection::conceal(const RemoteAddress& address) {
  const auto isOfSpace = [&](const auto& each) { return each.space == address.space; };
  std::erase_if(out_.exposures, isOfSpace);
  if (!isNear_ && failed_.empty() && std::ranges::any_of(out_.serving, isOfSpace)) {
    failed_ = fmt::format("memory was withdrawn while rank {} (simulated) still fetched from it", peer_);
    stopFetches();
  }
}

ReadLimits SimulatedConnection::readLimits() const {
  const FetchOptions& fetches = network_.options_.fetches;
  if (isNear_ || !fetches.isDrawn) {
    return {.isWire = !isNear_};
  }
  return {.isWire = true,
          .minEdgeBytes = network_.servesFetches(self_, peer_) ? fetches.minEdgeBytes : ReadLimits::kNone,
          .minRunBytes = fetches.minRunBytes,
          .minLocalRunBytes = fetches.minLocalRunBytes};
}

const std::byte* SimulatedConnection::map(const RemoteAddress& address, std::size_t) {
  return isNear_ && address.space == kVirtualSpace ? reinterpret_cast<const std::byte*>(address.value) : nullptr;
}

Status SimulatedConnection::read(std::span<const MemoryRun> runs) {
  if (hasWithdrawn()) {
    return {StatusCode::kPeerFailed, fmt::format("rank {} (simulated) failed and has its tensors back", peer_)};
  }
  for (const MemoryRun& run : runs) {
    std::memcpy(run.local, reinterpret_cast<const std::byte*>(run.remote), run.bytes);
  }
  return Status::ok();
}

// The clocks of two ranks may differ by a turn, and memory given back is never read.
bool SimulatedConnection::hasWithdrawn() const {
  return isNear_ ? in_.hasStopped : in_.withdrawnAt <= now();
}

bool SimulatedConnection::fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) {
  SW_CHECK(!isNear_ && !runs.empty());
  const FetchOptions& fetches = network_.options_.fetches;
  Random& random = network_.world_.random();
  if (fetches.refusedPercent > 0 && out_.fetchesFrom <= now() && random.chance(fetches.refusedPercent)) {
    out_.fetchesFrom = now() + random.between(kMicrosecond, kMillisecond);
    network_.ringAt(out_.fetchesFrom, self_);
  }
  if (out_.requests.size() >= fetches.mostRequests || out_.fetchesFrom > now() || out_.hasStopped) {
    return false;
  }
  const Time arrives = out_.isCut || process().isDead() ? kNever : std::max(arrivalOf(0), out_.heldUntil);
  ++count->pending;
  out_.requests.push_back({.space = space, .runs = {runs.begin(), runs.end()}, .count = count, .arrives = arrives});
  network_.note(self_, "requests {} runs of rank {}'s memory {}", runs.size(), peer_, space);
  network_.recordFrame(self_, peer_, arrives, "a request for memory");
  network_.ringAt(arrives, peer_);
  if (fetches.isDrawn && arrives != kNever) {
    network_.checkServedAt(arrives, self_, peer_);
  }
  return true;
}

bool SimulatedConnection::stopFetches() {
  if (!std::exchange(out_.hasStopped, true)) {
    out_.withdrawnAt = isNear_ || out_.isCut ? kNever : arrivalOf(0);
    out_.requests.clear();  // later answers are dropped
    out_.serving.clear();
    if (!network_.options_.fetches.isDrawn) {
      out_.answers.clear();
    }
    in_.answers.clear();
    in_.requests.clear();
    network_.note(self_, "stops fetches with rank {}", peer_);
  }
  return true;
}

Status SimulatedConnection::health() {
  if (!in_.broken.empty() || !failed_.empty()) {
    return {StatusCode::kPeerFailed, in_.broken.empty() ? failed_ : in_.broken};
  }
  if (in_.endSeenAt > now()) {
    return Status::ok();
  }
  const char* const how = in_.end == End::kLeft   ? "left the group"
                          : in_.end == End::kDied ? "died"
                                                  : "died, or its network connection failed";
  return {StatusCode::kPeerFailed, fmt::format("rank {} (simulated) {}", peer_, how)};
}

std::string SimulatedConnection::describe() const {
  return fmt::format("rank {}: simulated", peer_);
}

bool SimulatedConnection::poll() {
  bool moved = false;
  while (!in_.requests.empty() && in_.requests.front().arrives <= now() && !out_.hasStopped) {
    serve(std::move(in_.requests.front()));
    in_.requests.pop_front();
    moved = true;
  }
  moved |= sendAnswers();
  return takeAnswers() || moved;
}

Process& SimulatedConnection::process() const {
  return *network_.processes_[static_cast<std::size_t>(self_)];
}

Time SimulatedConnection::now() const {
  return network_.nowOf(self_);
}

// A short write: bytes behind the first arrive later, and the frame arrives whole.
Time SimulatedConnection::arrivalOf(std::size_t bytes) const {
  Time arrives = now() + network_.drawDelay(self_, peer_);
  const std::size_t piece = network_.options_.shortWriteBytes;
  for (std::size_t sent = piece; piece != 0 && sent < bytes && sent < 16 * piece; sent += piece) {
    arrives += network_.drawDelay(self_, peer_);
  }
  return arrives;
}

bool SimulatedWire::poll() {
  bool moved = false;
  for (SimulatedConnection* const connection : network_.connections_[static_cast<std::size_t>(self_)]) {
    moved |= connection->poll();
  }
  return moved;
}

std::uint64_t SimulatedWire::pin(const void*, std::size_t, bool, const void*) {
  network_.pins_.insert(++network_.lastPin_);
  return network_.lastPin_;
}

void SimulatedWire::unpin(std::uint64_t pin) {
  SW_CHECK(network_.pins_.erase(pin) == 1);
}

}  // namespace shardwire::simulate
