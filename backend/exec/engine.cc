// Operations are taken in the order of the calls, and each gets the next number: frames carry it, so that ranks find the same operation by
// it. All that are in flight are stepped in that order by whoever polls (pollLocked): wires first, since only there do frames arrive; then
// all control frames; then each operation, oldest first, which notes to whom later ones may not send yet. Those that finished are retired
// at once, in any order. A call polls a few times itself before it returns, without a look at the clock: a short operation is mostly over
// by then. When the group is poisoned, everything in flight is retired with that reason, and nothing is taken any more.
#include "backend/exec/engine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "backend/base/log.h"
#include "backend/base/patience.h"
#include "backend/base/relax.h"
#include "backend/exec/one_sided.h"
#include "backend/exec/point_to_point.h"
#include "backend/exec/process_engines.h"
#include "backend/exec/process_failures.h"

namespace shardwire::internal {

namespace {

// Between two looks at the clock while spinning: about half a microsecond.
constexpr int kPollsWithoutClock = 8;
// A waiter that has spun for so long offers its core to others between polls.
constexpr Duration kYieldAfter = std::chrono::microseconds(3);

// Whether the machine has a core for each of them. Those that this thread may use are asked for first: it costs little, and only where they
// are too few (a bound rank has one) the others of the machine are counted, for which the C library reads a file.
bool hasCores(int ranks) {
  cpu_set_t own;
  return (::sched_getaffinity(0, sizeof own, &own) == 0 && CPU_COUNT(&own) >= ranks) ||
         ranks <= static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

Engine::Engine(Peers peers, Rank rank, int worldSize, const Options& options, std::string groupName)
    : rank_(rank),
      worldSize_(worldSize),
      options_(options),
      groupName_(std::move(groupName)),
      peers_(std::move(peers)),
      context_{.host = *this,
               .rank = rank,
               .worldSize = worldSize,
               .label = groupName_.empty() ? fmt::format("rank {} of {}", rank, worldSize)
                                           : fmt::format("rank {} of {}, group \"{}\"", rank, worldSize, groupName_),
               .inlineBytes = options.inlineBytes,
               .segmentBytes = options.ringBytes,
               .connections = peers_.connections,
               .wires = peers_.wires},
      recorder_(static_cast<std::size_t>(std::max(options.recordedOps, 0))),
      operations_(context_, recorder_, options.timeout),
      progress_(ProgressThread::of(peers_.doorbell->progressBell())) {
  const auto n = static_cast<std::size_t>(worldSize);
  int local = 1;
  isJoined_.resize(n);
  for (const auto& connection : peers_.connections) {
    if (connection != nullptr) {
      if (peers_.late == nullptr || !peers_.late->isLate(connection->peer())) {
        isJoined_[static_cast<std::size_t>(connection->peer())] = true;
        joined_.push_back(connection->peer());
      }
      context_.segmentBytes = std::min(context_.segmentBytes, connection->maxFrameBytes(Lane::kBulk) - kHeadBytes<StagedFrame>);
      const auto peer = static_cast<std::size_t>(connection->peer());
      local += peers_.hosts[peer] == peers_.hosts[static_cast<std::size_t>(rank)] ? 1 : 0;
    }
  }
  context_.segmentBytes &= ~std::size_t{63};
  // With a core for every rank a hand-off is 0.2 us when both spin and 5 us when one sleeps. Without, a spinner that offers its core after
  // every few looks hands over in 1 us, which is still less than sleeping.
  const bool crowded = !hasCores(local);
  spin_ = options.spin.count() >= 0 ? options.spin : std::chrono::microseconds(200);
  yieldAfter_ = crowded ? Duration(0) : kYieldAfter;
  maxInlineSpin_ = crowded ? std::min<Duration>(spin_, std::chrono::microseconds(2)) : spin_;
  failNoticeDue_.resize(n);
  desyncSeq_.resize(n);
  peerDown_.resize(n);
  waiting_.resize(n);
  globalRanks_.resize(n);
  std::iota(globalRanks_.begin(), globalRanks_.end(), 0);
  points_ = std::make_unique<PointToPoint>(context_);
  oneSided_ = std::make_unique<OneSided>(context_);
}

Engine::~Engine() = default;

std::shared_ptr<Engine> Engine::create(Peers peers, Rank rank, int worldSize, const Options& options, std::string groupName) {
  // In a child of fork() it stays for ever: its end would tell the peers, and join threads that are the parent's.
  std::shared_ptr<Engine> engine(new Engine(std::move(peers), rank, worldSize, options, std::move(groupName)), [](Engine* ended) {
    if (ended->owner().isHere()) {
      delete ended;
    }
  });
  addProcessGroup(engine.get(), [weak = std::weak_ptr(engine)] {
    if (const std::shared_ptr<Engine> live = weak.lock()) {
      live->hearOfFailure();
    }
  });
  engine->progress_->add(engine);
  addProcessEngine(engine);
  return engine;
}

std::uint64_t Engine::sequenceNumber() const {
  const MutexLock lock(mutex_);
  return operations_.nextSeq() - 1;
}

Status Engine::status() const {
  const MutexLock lock(mutex_);
  return operations_.failure().value_or(Status::ok());
}

Duration Engine::timeout() const {
  const MutexLock lock(mutex_);
  return operations_.timeout();
}

void Engine::setTimeout(Duration timeout) {
  const MutexLock lock(mutex_);
  operations_.setTimeout(timeout);
}

std::string Engine::describeTransports() {
  const MutexLock lock(mutex_);
  if (isClosed_) {
    return "the group was shut down\n";
  }
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

void Engine::attach(Staging* staging) {
  if (staging != nullptr) {
    staging->attach([weak = weak_from_this()] {
      if (const std::shared_ptr<Engine> engine = weak.lock()) {
        engine->peers_.doorbell->ringSelf();
        engine->wakeProgress();
      }
    });
  }
}

// ---- taking operations

void Engine::take(const std::shared_ptr<Activity>& activity) {
  if (!activity->isIn(context_)) {
    activity->enter(context_, weak_from_this());
  }
  operations_.take(activity);
  if (peers_.late != nullptr) {
    wantLinks(*activity);
  }
  // Only a holder of the lock takes it back. Mostly it is set already, and a store that all threads must see at once is not free.
  if (!hasWork_.load(std::memory_order_relaxed)) {
    hasWork_.store(true, std::memory_order_seq_cst);
  }
}

// Ends a caller's turn at driving. If operations are in flight and nobody waits for them, from here on a peer's frame wakes the progress
// thread, or another caller that is asleep. What came before arming is seen by the poll.
void Engine::stopDriving() {
  drivers_.fetch_sub(1, std::memory_order_seq_cst);
  if (!operations_.inFlight().empty() || oneSided_->isServing()) {
    peers_.doorbell->arm(Wakes::kAll);
    if (pollLocked() && !operations_.inFlight().empty()) {
      wakeProgress();  // there may be more to do that waits for no peer, such as the rest of a long read: nobody rings for that
    }
  }
}

Status Engine::submit(std::span<const std::shared_ptr<Activity>> activities, Duration spinInline, const CallRecord& record) {
  Completions done;
  {
    const MutexLock lock(mutex_);
    if (operations_.failure().has_value()) {
      for (const auto& activity : activities) {
        activity->abandon();
      }
      return *operations_.failure();
    }
    // A driver from here on: the progress thread must not arm the bell for what is over in a moment, or every frame costs the peer a
    // wake-up.
    drivers_.fetch_add(1, std::memory_order_seq_cst);
    startAll(activities, record);
    spinFor(*activities.back(), std::min(spinInline, maxInlineSpin_));
    stopDriving();
    takeCompletions(&done);
  }
  flush(&done);
  return Status::ok();
}

void Engine::startAll(std::span<const std::shared_ptr<Activity>> activities, const CallRecord& record) {
  const std::uint64_t call = record.continues.call != 0 ? record.continues.call : operations_.nextCall();
  for (const auto& activity : activities) {
    operations_.number(*activity, call);
    take(activity);
    if (&activity == &activities.back()) {
      operations_.record(*activity, record);
    }
    deliverEarly(*activity);
  }
  pollLocked();
}

void Engine::spinFor(const Activity& last, Duration spinInline) {
  const bool spins = spinInline > Duration::zero();
  for (int i = 0; spins && i < kPollsWithoutClock && !last.isDone(); ++i) {
    if (!pollLocked()) {
      relax();
    }
  }
  if (operations_.inFlight().empty()) {
    return;
  }
  const auto started = operations_.startClocks();
  const auto until = started + spinInline;
  for (auto now = started; spins && !last.isDone() && now < until; now = Clock::now()) {
    if (now - started >= yieldAfter_) {
      if (!mayYield(now)) {
        return;
      }
      yieldCore(now);
    }
    for (int i = 0; i < kPollsWithoutClock && !last.isDone(); ++i) {
      if (!pollLocked()) {
        relax();
      }
    }
  }
}

Status Engine::submitPoint(const std::shared_ptr<Activity>& activity, const std::function<void(PointToPoint&)>& start,
                           const CallRecord& record) {
  Completions done;
  {
    const MutexLock lock(mutex_);
    if (operations_.failure().has_value()) {
      return *operations_.failure();
    }
    drivers_.fetch_add(1, std::memory_order_seq_cst);
    take(activity);
    operations_.record(*activity, record);
    operations_.startClocks();
    start(*points_);
    pollLocked();
    stopDriving();
    takeCompletions(&done);
  }
  flush(&done);
  return Status::ok();
}

// ---- progress

bool Engine::pollLocked() {
  if (isClosed_) {
    return false;
  }
  bool progress = false;
  for (const auto& wire : peers_.wires) {
    progress |= wire->poll();
  }
  if (peers_.late != nullptr) {
    progress |= takeLateLinks();
  }
  for (const Rank peer : joined_) {
    if (!connection(peer).peek(Lane::kControl).empty()) {
      drainControl(peer);
      progress = true;
    }
  }
  if (hasNotices_) {
    flushFailNotices();
  }
  if (oneSided_->isOwing()) {
    progress |= oneSided_->pay();
  }
  return operations_.step() || progress;
}

void Engine::begin(Activity& activity) {
  mutex_.assertHeld();
  operations_.begin(activity);
}

void Engine::finish(Activity& activity, Status status) {
  mutex_.assertHeld();
  operations_.finish(activity, std::move(status));
}

}  // namespace shardwire::internal
