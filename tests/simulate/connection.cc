// The lanes first: reserve() and commit() put frames into the outgoing direction with a drawn time of arrival, peek()
// and release() take frames of the incoming direction. Then memory: ranks of one host read at once; others fetch, and
// poll() serves the requests and takes the answers in pieces. health() shows the peer's end from the time on when this
// rank can know of the end. An answer may leave in parts, which sendPart() reads from the owner's memory one after the
// other, as tcp sends from tensors.
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
  network_.note(self_, "sends {} to rank {}: {} bytes on the {} lane, {}", describeFrame(frame.bytes), peer_, bytes,
                kLaneNames[at(lane)],
                out_.isCut ? "lost" : "arriving at " + inMilliseconds(network_.world_.elapsed(frame.arrives)));
  network_.recordFrame(self_, peer_, frame.arrives, fmt::format("{}, {} bytes", describeFrame(frame.bytes), bytes));
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
  network_.note(self_, "takes {} of rank {}", describeFrame(queue.frames.front().bytes), peer_);
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
  std::erase_if(out_.exposures, [&](const auto& each) { return each.space == address.space; });
  const auto isOfSpace = [&](const auto& each) { return each.space == address.space; };
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

void SimulatedConnection::serve(Direction::Fetch fetch) {
  for (const MemoryRun& run : fetch.runs) {
    const auto begin = reinterpret_cast<const std::byte*>(run.remote);
    const bool isExposed = std::any_of(out_.exposures.begin(), out_.exposures.end(), [&](const auto& each) {
      return each.space == fetch.space && begin >= each.bytes && begin + run.bytes <= each.bytes + each.size;
    });
    if (!isExposed) {
      out_.broken = fmt::format("rank {} (simulated) refused a fetch: memory {} is not exposed", self_, fetch.space);
      network_.note(self_, "refuses a fetch of rank {}", peer_);
      return;
    }
  }
  fetch.arrives = now();
  fetch.number = ++out_.lastAnswer;
  out_.serving.push_back(std::move(fetch));
}

// Parts of the oldest answer, or of any answer where answers overtake.
bool SimulatedConnection::sendAnswers() {
  bool moved = false;
  for (std::size_t i = 0; i < out_.serving.size();) {
    Direction::Fetch& each = out_.serving[i];
    const bool leaves = each.arrives <= now();
    if (leaves) {
      sendPart(each);
      moved = true;
    }
    if (each.first == each.size()) {
      out_.serving.erase(out_.serving.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (!leaves && network_.options_.fetches.overtakes) {
      ++i;
    } else if (!leaves) {
      break;
    }
  }
  return moved;
}

// The bytes are read from the owner's memory now.
void SimulatedConnection::sendPart(Direction::Fetch& serving) {
  const FetchOptions& fetches = network_.options_.fetches;
  Random& random = network_.world_.random();
  const std::size_t size = serving.size();
  std::size_t end = size;
  if (fetches.mostParts > 1) {
    const std::size_t least = size / static_cast<std::size_t>(fetches.mostParts) + 1;
    end = std::min(size, serving.first + static_cast<std::size_t>(random.between(
                                             static_cast<std::int64_t>(least), static_cast<std::int64_t>(2 * least))));
  }
  Direction::Fetch part = serving;
  std::size_t begin = 0;
  for (const MemoryRun& run : serving.runs) {
    const std::size_t from = std::max(serving.first, begin);
    const std::size_t to = std::min(end, begin + run.bytes);
    if (from < to) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(run.remote);
      part.bytes.insert(part.bytes.end(), bytes + (from - begin), bytes + (to - begin));
    }
    begin += run.bytes;
  }
  const bool isBehind = !fetches.overtakes && !out_.answers.empty();
  part.arrives =
      std::max({arrivalOf(0), out_.heldUntil, serving.lastArrival, isBehind ? out_.answers.back().arrives : 0});
  part.arrives = out_.isCut || process().isDead() ? kNever : part.arrives;
  part.isLast = end == size;
  serving.lastArrival = part.arrives;
  network_.note(self_, "sends {} fetched bytes to rank {}", part.bytes.size(), peer_);
  network_.recordFrame(self_, peer_, part.arrives, fmt::format("{} fetched bytes", part.bytes.size()));
  network_.ringAt(part.arrives, peer_);
  serving.first = end;
  if (end < size) {
    serving.arrives = now() + random.between(0, fetches.longestPause);
    network_.ringAt(serving.arrives, self_);
  }
  out_.answers.push_back(std::move(part));
  if (fetches.isDrawn) {
    network_.countFrame(self_);
  }
}

bool SimulatedConnection::takeAnswers() {
  bool moved = false;
  for (std::size_t i = 0; i < in_.answers.size() && !out_.hasStopped;) {
    Direction::Fetch& each = in_.answers[i];
    if (each.arrives <= now()) {
      take(each);
      moved = true;
      if (each.done == each.bytes.size()) {
        const Direction::Fetch taken = std::move(each);
        in_.answers.erase(in_.answers.begin() + static_cast<std::ptrdiff_t>(i));
        endPart(taken);
      }
    } else if (network_.options_.fetches.overtakes) {
      ++i;
    } else {
      break;
    }
  }
  return moved;
}

// A part that is taken in pieces may be over after the last part.
void SimulatedConnection::endPart(const Direction::Fetch& part) {
  const auto rest = std::ranges::find(in_.answers, part.number, &Direction::Fetch::number);
  if (part.isLast && rest != in_.answers.end()) {
    rest->isLast = true;
  } else if (part.isLast) {
    --part.count->pending;
  }
}

void SimulatedConnection::take(Direction::Fetch& fetch) {
  const std::size_t piece = network_.options_.shortWriteBytes;
  const std::size_t end =
      piece == 0 ? fetch.bytes.size() : std::min(fetch.bytes.size(), std::max(fetch.done + piece, fetch.done + 1));
  std::size_t runBegin = 0;
  for (const MemoryRun& run : fetch.runs) {
    const std::size_t from = std::max(fetch.first + fetch.done, runBegin);
    const std::size_t to = std::min(fetch.first + end, runBegin + run.bytes);
    if (from < to) {
      std::memcpy(run.local + (from - runBegin), fetch.bytes.data() + (from - fetch.first), to - from);
    }
    runBegin += run.bytes;
  }
  fetch.done = end;
  if (end < fetch.bytes.size()) {
    fetch.arrives = now() + network_.world_.random().between(kMicrosecond, 50 * kMicrosecond);
    network_.ringAt(fetch.arrives, self_);
  }
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
