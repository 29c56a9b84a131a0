// The public calls, each a few words to the parts: Driving holds the lock and polls, GroupState has everything that the
// lock guards. A call that starts operations takes the operations under the lock, in the order of the calls, and polls
// for a moment before returning. A call that waits drives in slices, between which Python's signal handlers may run. An
// engine that shuts down notifies the peers, stays for a moment for peers that are not joined yet, and destroys the
// connections outside of the lock.
#include "backend/exec/engine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "backend/base/interruptible_wait.h"
#include "backend/exec/control_frames.h"
#include "backend/exec/process_engines.h"
#include "backend/exec/run.h"

namespace shardwire::internal {

namespace {

// How long a failed group is kept for peers without a link, and for peers with a link under way.
constexpr Duration kStaysFor = std::chrono::milliseconds(500);
constexpr Duration kStaysForKnown = std::chrono::seconds(5);
constexpr Duration kStayNap = std::chrono::milliseconds(2);
constexpr Duration kLeaveNap = std::chrono::microseconds(200);

// Whether the machine has a core for each of the ranks. First counts the cores that this thread may use, which costs
// little. Only if these are too few (a bound rank has one) counts all cores of the machine, for which the C library
// reads a file.
bool hasCores(int ranks) {
  cpu_set_t own;
  return (::sched_getaffinity(0, sizeof own, &own) == 0 && CPU_COUNT(&own) >= ranks) ||
         ranks <= static_cast<int>(std::thread::hardware_concurrency());
}

GroupFacts factsOf(const Peers& peers, Rank rank, int worldSize, const Options& options, std::string groupName) {
  std::string label = groupName.empty() ? fmt::format("rank {} of {}", rank, worldSize)
                                        : fmt::format("rank {} of {}, group \"{}\"", rank, worldSize, groupName);
  std::size_t segmentBytes = options.ringBytes;
  for (const auto& connection : peers.connections) {
    if (connection != nullptr) {
      segmentBytes = std::min(segmentBytes, connection->maxFrameBytes(Lane::kBulk) - kHeadBytes<StagedFrame>);
    }
  }
  const auto ranksHere =
      peers.hosts.empty() ? 1 : std::ranges::count(peers.hosts, peers.hosts[static_cast<std::size_t>(rank)]);
  return {rank,
          worldSize,
          options,
          std::move(groupName),
          std::move(label),
          segmentBytes & ~std::size_t{63},
          peers.hosts,
          hasCores(static_cast<int>(ranksHere))};
}

}  // namespace

Engine::Engine(Peers peers, GroupFacts facts)
    : peers_(std::move(peers)),
      facts_(std::move(facts)),
      recorder_(static_cast<std::size_t>(std::max(facts_.options.recordedOps, 0))),
      driving_(peers_, facts_, recorder_, failureCallback_),
      memory_(driving_, facts_),
      reports_(driving_, peers_, facts_, recorder_) {}

Engine::~Engine() = default;

Result<std::shared_ptr<Engine>> Engine::create(Peers peers, Rank rank, int worldSize, const Options& options,
                                               std::string groupName) {
  GroupFacts facts = factsOf(peers, rank, worldSize, options, std::move(groupName));
  // In a child of fork() the engine is never destroyed: the destructor would notify the peers, and join threads of the
  // parent.
  std::shared_ptr<Engine> engine(new Engine(std::move(peers), std::move(facts)), [](Engine* ended) {
    if (ended->facts_.owner.isHere()) {
      delete ended;
    }
  });
  engine->driving_.locked([&](GroupState& state) { state.driver = engine; });
  addProcessGroup(engine->failureKey(), [weak = std::weak_ptr(engine)] {
    if (const std::shared_ptr<Engine> live = weak.lock()) {
      live->onProcessFailure();
    }
  });
  if (const Status started = engine->driving_.startThread(); !started.isOk()) {
    Status why(started.code(), fmt::format("group '{}' could not be made: rank {} could not start: {}",
                                           engine->facts_.name, rank, started.message()));
    engine->abort(why);
    engine->shutdown();
    return why;
  }
  engine->driving_.addTo(engine);
  addProcessEngine(engine);
  return engine;
}

ProcessGroup Engine::failureKey() const {
  return driving_.locked([](const GroupState& state) { return state.context.inProcess(); });
}

void Engine::setTimeout(Duration timeout) {
  driving_.locked([&](GroupState& state) { state.operations.setTimeout(timeout); });
}

void Engine::attach(Staging* staging) {
  if (staging != nullptr) {
    staging->attach([weak = weak_from_this()] {
      if (const std::shared_ptr<Engine> engine = weak.lock()) {
        engine->peers_.doorbell->ringSelf();
        engine->driving_.wakeProgress();
      }
    });
  }
}

// ---- Starting and waiting

Status Engine::submit(std::span<const std::shared_ptr<Activity>> activities, Duration spinInline,
                      const CallRecord& record) {
  const auto begin = [&](GroupState& state) {
    const std::uint64_t call = record.continues.call != 0 ? record.continues.call : state.operations.nextCall();
    const int polls = spinInline > Duration::zero() ? driving_.mostPolls(true) : 0;
    for (const auto& activity : activities) {
      state.operations.number(*activity, call);
      if (&activity == &activities.back()) {
        state.operations.record(*activity, record);
      }
      if (polls > 0 && state.moveNow(*activity, polls)) {
        continue;
      }
      state.take(activity);
      activity->isInCall = true;
      deliverEarly(state, *activity);
    }
    return activities.back().get();
  };
  Status status = driving_.start(begin, spinInline);
  for (const auto& activity : activities) {
    if (!status.isOk()) {
      activity->abandon();
    }
    if (activity->isDone()) {
      activity->keepAlive = nullptr;  // see endInCall(); null already after complete()
    }
  }
  return status;
}

Status Engine::submitShort(Activity& activity, std::shared_ptr<void>& keepAlive, const CallRecord* record,
                           std::shared_ptr<Activity>* late) {
  bool isOver = false;
  const auto begin = [&](GroupState& state) -> const Activity* {
    state.operations.number(activity, state.operations.nextCall());
    if (record != nullptr) {
      state.operations.record(activity, *record);
    }
    isOver = state.moveNow(activity, driving_.mostPolls(true));
    if (isOver) {
      return nullptr;
    }
    *late = activity.shared_from_this();
    activity.keepAlive = std::move(keepAlive);
    state.take(*late);
    activity.isInCall = true;
    deliverEarly(state, activity);
    return &activity;
  };
  Status status = driving_.start(begin, kShortSpin);
  if (!status.isOk() && !isOver) {
    activity.abandon();
  }
  if (*late != nullptr && activity.isDone()) {
    activity.keepAlive = nullptr;  // see endInCall(); null already after complete()
  }
  return status;
}

Status Engine::submitPoint(const std::shared_ptr<Activity>& activity, const std::function<void(PointToPoint&)>& start,
                           Duration spinInline, const CallRecord& record, Driving::IfFailed ifFailed) {
  const auto begin = [&](GroupState& state) {
    state.take(activity);
    state.operations.record(*activity, record);
    if (state.operations.failure().isOk()) {  // else the group has ended meanwhile, perhaps with its connections
      start(state.points);
    }
    return activity.get();
  };
  return driving_.start(begin, spinInline, ifFailed);
}

Result<WorkPtr> Engine::sendNow(std::span<const std::byte> bytes, const CallRecord& record, Duration timeout) {
  return driving_.tryNow([&](GroupState& state) {
    std::shared_ptr<Activity> sent = state.points.sendNow(record.destination, record.tag, bytes);
    if (sent != nullptr) {
      state.operations.recordOver(record, timeout, bytes.size());
    }
    state.poll();  // a program that only sends learns of failures, too
    return sent;
  });
}

Result<WorkPtr> Engine::recvNow(std::span<std::byte> bytes, const CallRecord& record, Duration timeout, bool spins) {
  return driving_.tryNow([&](GroupState& state) {
    PointToPoint::ReceiveNow receive(state.points, record.source, record.tag, bytes);
    driving_.pollBriefly(state, spins, [&] { return receive.isDone() || !receive.isOpen(); });
    std::shared_ptr<Activity> received = receive.takeWork();
    if (received != nullptr) {
      if (!received->isIn(state.context)) {
        received->enter(state.context, state.driver);  // for lendDriver()
      }
      state.operations.recordOver(record, timeout, bytes.size());
    }
    return received;
  });
}

Status Engine::waitFor(Activity& activity, Deadline until) {
  if (!facts_.owner.isHere()) {
    return facts_.owner.check(facts_.label);
  }
  InterruptibleWait slices(until);
  Patience patience =
      driving_.newPatience();  // for the whole wait: the next slice goes on sleeping where this slice slept
  while (!driving_.drive(activity, slices.sliceEnd(), patience)) {
    if (slices.isInterrupted()) {
      interruptedWaits_.add(activity.shared_from_this());
      return interruptedStatus(activity.description.text() + " (" + facts_.label + ")");
    }
    if (Clock::now() >= until && !activity.isDone()) {  // the check for signals may have taken long
      return {StatusCode::kTimeout, activity.description.text() +
                                        " is still in flight: the wait ended first, the operation goes on (" +
                                        facts_.label + ")"};
    }
  }
  Status status = activity.status();
  if (!status.isOk()) {
    failureCallback_.run();  // another thread may have noticed the failure, and be about to run the callback
  }
  return status;
}

// ---- Failures and the end

void Engine::abort(Status reason) {
  driving_.act([&](GroupState& state) {
    state.failure.fail(std::move(reason));
    state.poll();
  });
}

void Engine::revoke(std::string why) {
  driving_.act([&](GroupState& state) {
    if (state.links.isClosed()) {
      return;
    }
    state.failure.revoke(std::move(why));
    state.links.wantAll();
    state.poll();
  });
  driving_.wakeProgress();  // links under way end without a call of this rank
}

void Engine::onProcessFailure() {
  const bool isDone = driving_.tryLocked([](GroupState& state) {
    // After close() the connections are being ended, and leave by the wires.
    if (!state.links.isClosed()) {
      state.questions.sendAdvice();
      std::ranges::for_each(state.context.wires, [](const auto& wire) { wire->poll(); });
    }
  });
  if (!isDone) {
    peers_.doorbell->ringSelf();  // the thread with the lock looks soon
    driving_.wakeProgress();
  }
}

void Engine::shutdown() {
  const MutexLock guard(shutdownMutex_);
  if (stopped_) {
    return;
  }
  stopped_ = true;
  if (const auto wait = driving_.locked([&](const GroupState&) { return interruptedWaits_.pending(); })) {
    abort({StatusCode::kAborted,
           fmt::format("aborted on {}: {} was interrupted by a signal (Ctrl-C?), and then the group was ended",
                       facts_.label, *wait)});
  }
  failureCallback_.run();
  const ProcessGroup key = failureKey();
  driving_.locked([&](GroupState& state) {
    state.questions.sendAdvice(true);
    // From here on this group keeps no other group waiting, however long this group stays for late peers.
    removeProcessGroup(key);
  });
  stayForLatePeers();
  driving_.act([&](GroupState& state) {
    removeProcessGroup(key);  // the group may have failed meanwhile
    if (const Status& why = state.operations.failure(); !why.isOk() && !state.failure.notice().empty()) {
      peers_.doorbell->leaveWord({why.code(), state.failure.notice()});
    }
    if (state.operations.failure().isOk()) {
      state.oneSided.forget();  // the group ends without a failure that quiet() would report
    }
    state.failure.end({StatusCode::kAborted, "the group was shut down on " + facts_.label});
    state.poll();
  });
  stayForRoom();
  driving_.finishCallbacks();
  driving_.removeFrom(this);
  peers_.doorbell->leave();
  // An object that still holds the engine, say a compiled op in Python, must not keep the links open: over a wire the
  // end of the links is the peers' sign of this rank's end. The connections are destroyed outside of the lock, since a
  // farewell may take a moment.
  auto closing = driving_.locked([](GroupState& state) { return state.links.close(); });
  auto& connections = closing.first;
  const auto hasLeft = [](const auto& connection) { return connection == nullptr || connection->leave(); };
  std::ranges::for_each(connections, hasLeft);  // all send first, then each is destroyed when all is sent
  while (std::erase_if(connections, hasLeft), !connections.empty()) {
    std::this_thread::sleep_for(kLeaveNap);
  }
}

std::string Engine::describeLinks() const {
  return facts_.owner.isHere() ? locked([](const GroupState& state) { return state.links.describe(); })
                               : "no links: this process was forked from the rank\n";
}

// A failed group does not end at once while some peers are not joined, or while a full lane holds the notice back: a
// peer that comes to the operation a moment later must get the reason of the failure, and not only see that this rank
// left.
void Engine::stayForLatePeers() {
  const Deadline begin = Clock::now();
  const auto mayLeave = [&](GroupState& state) {
    const bool areAllNotified = state.links.isJoinedToAll() && !state.failure.hasNotices();
    if (state.operations.failure().isOk() || state.failure.notice().empty() || areAllNotified) {
      return true;
    }
    // Peers with a link under way are alive, and only have not come so far.
    if (Clock::now() >= begin + (state.links.isAnyUnderWay() ? kStaysForKnown : kStaysFor)) {
      return true;
    }
    state.poll();
    return false;
  };
  bool leaves = false;
  for (;;) {
    driving_.act([&](GroupState& state) { leaves = mayLeave(state); });
    if (leaves) {
      return;
    }
    std::this_thread::sleep_for(kStayNap);
  }
}

// Peers that were joined by the last poll, and peers with a full lane, still get the death in another group.
void Engine::stayForRoom() {
  const auto mayLeave = [](GroupState& state) {
    state.questions.sendDueAdvice();
    return !state.questions.isAdviceDue();
  };
  for (Duration stayed{}; stayed < kStaysFor && !driving_.locked(mayLeave); stayed += kStayNap) {
    std::this_thread::sleep_for(kStayNap);
    driving_.act([](GroupState& state) { state.poll(); });
  }
}

}  // namespace shardwire::internal
