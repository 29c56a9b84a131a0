#include "backend/exec/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/base/log.h"
#include "backend/base/relax.h"
#include "backend/exec/point_to_point.h"

namespace shardwire::internal {

namespace {

// Between two looks at the clock while spinning: about half a microsecond.
constexpr int kPollsWithoutClock = 8;
// A waiter that has spun for so long offers its core to others between polls.
constexpr Duration kYieldAfter = std::chrono::microseconds(3);

}  // namespace

Engine::Engine(Peers peers, Rank rank, int worldSize, const Options& options, std::string groupName)
    : rank_(rank),
      worldSize_(worldSize),
      options_(options),
      groupName_(std::move(groupName)),
      peers_(std::move(peers)),
      timeout_(options.timeout) {
  const auto n = static_cast<std::size_t>(worldSize);
  segmentBytes_ = options.ringBytes;
  int local = 1;
  for (const auto& connection : peers_.connections) {
    if (connection != nullptr) {
      segmentBytes_ = std::min(segmentBytes_, connection->maxFrameBytes(Lane::kBulk) - sizeof(FrameHeader));
      const auto peer = static_cast<std::size_t>(connection->peer());
      local += peers_.hosts[peer] == peers_.hosts[static_cast<std::size_t>(rank)] ? 1 : 0;
    }
  }
  segmentBytes_ &= ~std::size_t{63};
  // With a core for every rank a hand-off is 0.2 us when both spin and 5 us when one sleeps. Without, a spinner that offers its core after
  // every few looks hands over in 1 us, which is still less than sleeping.
  const bool crowded = local > static_cast<int>(std::thread::hardware_concurrency());
  spin_ = options.spin.count() >= 0 ? options.spin : std::chrono::microseconds(200);
  yieldAfter_ = crowded ? Duration(0) : kYieldAfter;
  maxInlineSpin_ = crowded ? std::min<Duration>(spin_, std::chrono::microseconds(2)) : spin_;
  blockedBulk_.resize(n);
  failNoticeDue_.resize(n);
  desyncSeq_.resize(n);
  peerDown_.resize(n);
  history_.resize(kHistory);
  points_ = std::make_unique<PointToPoint>(*this);
}

Engine::~Engine() {
  SW_CHECK(!thread_.joinable());
}

std::shared_ptr<Engine> Engine::create(Peers peers, Rank rank, int worldSize, const Options& options, std::string groupName) {
  std::shared_ptr<Engine> engine(new Engine(std::move(peers), rank, worldSize, options, std::move(groupName)));
  engine->thread_ = std::thread([engine] { engine->progressThread(); });
  return engine;
}

std::string Engine::groupLabel() const {
  return groupName_.empty() ? fmt::format("rank {} of {}", rank_, worldSize_)
                            : fmt::format("rank {} of {}, group \"{}\"", rank_, worldSize_, groupName_);
}

std::uint64_t Engine::sequenceNumber() const {
  std::lock_guard lock(mutex_);
  return nextSeq_ - 1;
}

Status Engine::status() const {
  std::lock_guard lock(mutex_);
  return poison_.value_or(Status::ok());
}

Duration Engine::timeout() const {
  std::lock_guard lock(mutex_);
  return timeout_;
}

void Engine::setTimeout(Duration timeout) {
  std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

std::string Engine::describeTransports() {
  std::string text;
  for (const auto& connection : peers_.connections) {
    if (connection == nullptr) {
      text += fmt::format("rank {}: this rank\n", rank_);
      continue;
    }
    const std::string& why = peers_.whyNotFaster[static_cast<std::size_t>(connection->peer())];
    text += fmt::format("{}{}\n", connection->describe(), why.empty() ? "" : fmt::format(" (no faster one: {})", why));
  }
  return text;
}

std::span<std::byte> Engine::scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) {
    scratch_.resize(bytes);
  }
  return std::span(scratch_).first(bytes);
}

void Engine::attach(Staging* staging) {
  if (staging != nullptr) {
    staging->attach([weak = weak_from_this()] {
      if (const std::shared_ptr<Engine> engine = weak.lock()) {
        engine->peers_.doorbell->ringSelf();
      }
    });
  }
}

// ---- taking operations

void Engine::take(const std::shared_ptr<Activity>& activity) {
  activity->started = activity->timed ? Clock::now() : Clock::time_point{};
  activity->deadline = kNoDeadline;
  if (activity->timeout.count() == 0) {
    activity->timeout = timeout_;
  }
  activity->setEngine(*this);
  active_.push_back(activity);
}

// Sets the deadlines of what was taken since the last call. Operations that are over within the first polls never look at the clock.
Clock::time_point Engine::startClocks() {
  const auto now = Clock::now();
  for (auto it = active_.rbegin(); it != active_.rend() && (*it)->deadline == kNoDeadline; ++it) {
    Activity& activity = **it;
    if (activity.started == Clock::time_point{}) {
      activity.started = now;
    }
    activity.deadline = deadlineAfter(activity.timeout);
  }
  return now;
}

// Ends a caller's turn at driving. Nobody may ever wait for what is still in flight: from here on a peer's frame wakes the progress thread,
// or another caller that is asleep. What came before arming is seen by the poll.
void Engine::stopDriving() {
  drivers_.fetch_sub(1, std::memory_order_seq_cst);
  if (!active_.empty()) {
    peers_.doorbell->arm();
    pollLocked();
  }
}

Status Engine::submit(std::span<const std::shared_ptr<Activity>> activities, Duration spinInline) {
  std::unique_lock lock(mutex_);
  if (poison_.has_value()) {
    for (const auto& activity : activities) {
      activity->abandon();
    }
    return *poison_;
  }
  // A driver from here on: the progress thread must not arm the bell for what is over in a moment, or every frame costs the peer a wake-up.
  drivers_.fetch_add(1, std::memory_order_seq_cst);
  for (const auto& activity : activities) {
    activity->seq = nextSeq_++;
    take(activity);
    history_[activity->seq % kHistory] = {activity->seq, activity->description};
    deliverEarly(*activity);
  }
  pollLocked();
  const Activity& last = *activities.back();
  spinInline = std::min(spinInline, maxInlineSpin_);
  const bool spins = spinInline > Duration::zero();
  for (int i = 0; spins && i < kPollsWithoutClock && !last.isDone(); ++i) {
    if (!pollLocked()) {
      relax();
    }
  }
  if (!active_.empty()) {
    const auto started = startClocks();
    const auto until = started + spinInline;
    for (auto now = started; spins && !last.isDone() && now < until; now = Clock::now()) {
      if (now - started >= yieldAfter_) {
        std::this_thread::yield();
      }
      for (int i = 0; i < kPollsWithoutClock && !last.isDone(); ++i) {
        if (!pollLocked()) {
          relax();
        }
      }
    }
  }
  stopDriving();
  unlockAndFlush(lock);
  return Status::ok();
}

Status Engine::submitPoint(const std::shared_ptr<Activity>& activity, const std::function<void(PointToPoint&)>& start) {
  std::unique_lock lock(mutex_);
  if (poison_.has_value()) {
    return *poison_;
  }
  drivers_.fetch_add(1, std::memory_order_seq_cst);
  take(activity);
  startClocks();
  start(*points_);
  pollLocked();
  stopDriving();
  unlockAndFlush(lock);
  return Status::ok();
}

void Engine::deliverEarly(Activity& activity) {
  for (std::size_t i = 0; i < early_.size();) {
    if (early_[i].header.seq != activity.seq) {
      ++i;
      continue;
    }
    EarlyFrame frame = std::move(early_[i]);
    early_.erase(early_.begin() + static_cast<std::ptrdiff_t>(i));
    handleControl(frame.from, frame.header, frame.payload);
    frame.payload.clear();
    spareBuffers_.push_back(std::move(frame.payload));
  }
}

// ---- progress

bool Engine::pollLocked() {
  bool progress = false;
  for (const auto& wire : peers_.wires) {
    progress |= wire->poll();
  }
  for (Rank peer = 0; peer < worldSize_; ++peer) {
    if (peer != rank_) {
      progress |= drainControl(peer);
    }
  }
  if (failNotice_.size() > 0) {
    flushFailNotices();
  }
  if (poison_.has_value()) {
    while (!active_.empty()) {
      retire(0, failureOf(*active_.front(), *poison_));
      progress = true;
    }
    return progress;
  }
  std::fill(blockedBulk_.begin(), blockedBulk_.end(), false);
  for (std::size_t i = 0; i < active_.size() && !poison_.has_value(); ++i) {
    progress |= active_[i]->step(*this, blockedBulk_);
  }
  for (std::size_t i = 0; i < active_.size();) {
    if (active_[i]->finished()) {
      retire(i, Status::ok());
      progress = true;
    } else {
      ++i;
    }
  }
  return progress || poison_.has_value();
}

void Engine::retire(std::size_t index, Status status) {
  std::shared_ptr<Activity> activity = std::move(active_[index]);
  active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));
  if (mustKeepTensors_) {
    // Lost for good, and its tensors with it: the wire may write to them as long as the process lives.
    new std::pair(activity, activity->keepAlive);
  }
  completions_.push_back(activity->complete(std::move(status)));
}

void Engine::finish(Activity& activity, Status status) {
  for (std::size_t i = 0; i < active_.size(); ++i) {
    if (active_[i].get() == &activity) {
      retire(i, std::move(status));
      return;
    }
  }
}

bool Engine::drainControl(Rank peer) {
  Connection* connection = this->connection(peer);
  bool progress = false;
  for (auto frame = connection->peek(Lane::kControl); !frame.empty(); frame = connection->peek(Lane::kControl)) {
    progress = true;
    if (frame.size() < sizeof(FrameHeader)) {
      poison({StatusCode::kInternal, fmt::format("rank {} sent a control frame of {} bytes", peer, frame.size())}, true);
      connection->release(Lane::kControl);
      break;
    }
    const FrameHeader header = readHeader(frame);
    const auto payload = frame.subspan(sizeof(FrameHeader));
    if (header.version != kFrameVersion || header.payloadBytes != payload.size()) {
      poison({StatusCode::kInternal, fmt::format("rank {} sent a control frame that cannot be read (version {}, {} of {} bytes)", peer,
                                                 header.version, payload.size(), header.payloadBytes)},
             true);
    } else {
      handleControl(peer, header, payload);
    }
    connection->release(Lane::kControl);
  }
  return progress;
}

bool Engine::handleControl(Rank from, const FrameHeader& header, std::span<const std::byte> payload) {
  const auto peer = static_cast<std::size_t>(from);
  switch (header.kind) {
    case FrameKind::kFail:
      poison({static_cast<StatusCode>(header.a), std::string(textOf(payload))}, false);
      return true;
    case FrameKind::kDesync: {
      const std::string theirs(textOf(payload));
      const std::string mine = describeSeq(header.seq);
      if (header.a == 1) {
        sendControl(from, {.kind = FrameKind::kDesync, .seq = header.seq, .a = 0}, bytesOf(mine));
      }
      desyncSeq_[peer] = 0;
      const bool mineFirst = rank_ < from;
      poison({StatusCode::kMismatch,
              fmt::format(
                  "the ranks disagree about operation #{}: rank {} called {}, but rank {} called {}. All ranks of a group must call the "
                  "same operations in the same order with the same shapes and dtypes",
                  header.seq, std::min(rank_, from), mineFirst ? mine : theirs, std::max(rank_, from), mineFirst ? theirs : mine)},
             true);  // a third rank may be waiting for either of the two
      return true;
    }
    case FrameKind::kSendEager:
    case FrameKind::kSendOffer:
    case FrameKind::kSendGrant:
    case FrameKind::kSendDone:
      if (Status status = points_->onFrame(from, header, payload); !status.isOk()) {
        poison(std::move(status), true);
      }
      return true;
    default:
      break;
  }
  for (const auto& activity : active_) {
    if (!activity->ordered() || activity->seq != header.seq) {
      continue;
    }
    if (header.kind != FrameKind::kCancel && header.fingerprint != activity->fingerprint) {
      desync(from, header.seq);
    } else if (Status status = activity->onFrame(*this, from, header, payload); !status.isOk()) {
      poison(std::move(status), true);
    }
    return true;
  }
  if (header.seq >= nextSeq_) {
    EarlyFrame frame{from, header, {}};
    if (!spareBuffers_.empty()) {
      frame.payload = std::move(spareBuffers_.back());
      spareBuffers_.pop_back();
    }
    frame.payload.assign(payload.begin(), payload.end());
    early_.push_back(std::move(frame));
  }
  // A frame of an operation that is over here (it was cancelled): nobody wants it any more.
  return true;
}

bool Engine::sendControl(Rank peer, FrameHeader header, std::span<const std::byte> payload) {
  Connection* connection = this->connection(peer);
  header.payloadBytes = static_cast<std::uint32_t>(payload.size());
  const std::size_t bytes = sizeof header + payload.size();
  const auto frame = connection->reserve(Lane::kControl, bytes, bytes);
  if (frame.empty()) {
    return false;
  }
  writeHeader(frame, header);
  std::copy(payload.begin(), payload.end(), frame.begin() + sizeof header);
  connection->commit(Lane::kControl, bytes);
  return true;
}

}  // namespace shardwire::internal
