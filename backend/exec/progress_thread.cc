// The list of groups is replaced, never changed, so a thread goes through one list while groups come and go. A thread
// enters the entry of a group before looking at the group, and remove() waits until all other threads have left the
// entry. A callback that removes groups waits for no thread that is in a callback, since that callback may remove this
// callback's group. The leading thread looks at each group once, and sleeps on the bell when no group moved. While a
// callback keeps the leader for long, a follower leads (ProgressRole), and the old leader then follows.
#include "backend/exec/progress_thread.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <system_error>
#include <utility>

#include "backend/base/log.h"
#include "backend/base/per_process.h"
#include "backend/base/system_error.h"
#include "backend/exec/activity.h"

namespace shardwire::internal {
namespace {

// Longest sleep of the thread: by then the thread takes frames for idle groups.
constexpr Duration kLongestSleep = std::chrono::milliseconds(100);

struct Threads {
  Mutex mutex;
  std::map<const ProgressBell*, std::weak_ptr<ProgressThread>> byBell SW_GUARDED_BY(mutex);
};

}  // namespace

thread_local ProgressThread::Entry* ProgressThread::entered = nullptr;
thread_local bool ProgressThread::isCounted = false;

std::shared_ptr<ProgressThread> ProgressThread::of(std::shared_ptr<ProgressBell> bell) {
  Threads& all = PerProcess<Threads>::get();
  const MutexLock lock(all.mutex);
  std::erase_if(all.byBell, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<ProgressThread>& place = all.byBell[bell.get()];
  if (auto there = place.lock(); there != nullptr) {
    return there;
  }
  std::shared_ptr<ProgressThread> made(new ProgressThread(std::move(bell)));
  place = made;
  return made;
}

ProgressThread::ProgressThread(std::shared_ptr<ProgressBell> bell) {
  state_->bell = std::move(bell);
  static_cast<void>(start());  // each group calls start() again, and reports the error
}

Status ProgressThread::start() {
  const MutexLock lock(threadsMutex_);
  if (threads_.empty()) {
    try {
      threads_.emplace_back([state = state_] { state->follow(true); });
    } catch (const std::system_error& error) {
      return threadError("starting the thread that moves operations without a waiting caller", error);
    }
  }
  return Status::ok();
}

ProgressThread::~ProgressThread() {
  state_->stop.store(true, std::memory_order_seq_cst);
  state_->bell->ring();
  state_->role.stop();
  std::vector<std::thread> threads;
  {
    const MutexLock lock(threadsMutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) {
    // A callback may have dropped the last group on this very thread, which then ends by itself.
    std::this_thread::get_id() == thread.get_id() ? thread.detach() : thread.join();
  }
}

void ProgressThread::add(const std::shared_ptr<Progressed>& group) {
  const auto entry = std::make_shared<Entry>();
  entry->group = group;
  entry->key = group.get();
  const MutexLock lock(state_->mutex);
  Entries all = *state_->groups;
  std::erase_if(all, [](const auto& each) { return each->group.expired(); });
  all.push_back(entry);
  state_->groups = std::make_shared<const Entries>(std::move(all));
}

void ProgressThread::remove(const Progressed* group) {
  State& state = *state_;
  const MutexLock lock(state.mutex);
  Entries left = *state.groups;
  const auto at = std::find_if(left.begin(), left.end(), [&](const auto& each) { return each->key == group; });
  if (at == left.end()) {
    return;
  }
  const std::shared_ptr<Entry> entry = *at;
  left.erase(at);
  state.groups = std::make_shared<const Entries>(std::move(left));
  entry->isRemoved.store(true, std::memory_order_seq_cst);
  const bool isInCallback = isCounted || Activity::isInCallback();
  const auto numAwaited = [&] {
    const int inside = entry->numInside.load(std::memory_order_seq_cst);
    return inside - (isInCallback ? entry->numInCallbacks.load(std::memory_order_seq_cst) : 0);
  };
  const int mine = entered == entry.get() && !isCounted ? 1 : 0;
  while (numAwaited() > mine) {
    state.changed.wait(state.mutex);
  }
}

void ProgressThread::enterCallbacks(std::uint64_t* turn) {
  isCounted = true;
  entered->numInCallbacks.fetch_add(1, std::memory_order_seq_cst);
  state_->notifyRemoval(*entered);
  if (state_->role.enterCallbacks(turn) && !state_->stop.load(std::memory_order_acquire)) {
    const MutexLock lock(threadsMutex_);
    try {
      threads_.emplace_back([state = state_] { state->follow(false); });
    } catch (const std::system_error& error) {  // the next callbacks try again
      logWarn("no thread could be started: {}; operations without a waiting caller stand still while a callback runs",
              error.what());
      state_->role.noFollowerStarted();
    }
  }
}

bool ProgressThread::leaveCallbacks(std::uint64_t turn) {
  isCounted = false;
  entered->numInCallbacks.fetch_sub(1, std::memory_order_seq_cst);
  return state_->role.leaveCallbacks(turn);
}

// ---- on the threads

void ProgressThread::State::follow(bool leadsFirst) {
  if (leadsFirst) {
    lead();
  }
  while (role.follow()) {
    lead();
  }
}

// False: the group was removed.
bool ProgressThread::State::enter(Entry& entry) {
  entry.numInside.fetch_add(1, std::memory_order_seq_cst);
  if (!entry.isRemoved.load(std::memory_order_seq_cst)) {
    entered = &entry;
    return true;
  }
  leave(entry);
  return false;
}

void ProgressThread::State::leave(Entry& entry) {
  entered = nullptr;
  entry.numInside.fetch_sub(1, std::memory_order_seq_cst);
  notifyRemoval(entry);
}

void ProgressThread::State::notifyRemoval(const Entry& entry) {
  if (entry.isRemoved.load(std::memory_order_seq_cst)) {
    const MutexLock lock(mutex);  // remove() looks under the lock
    changed.notifyAll();
  }
}

// Until the end, or until another thread took the lead.
void ProgressThread::State::lead() {
  while (!stop.load(std::memory_order_seq_cst)) {
    const std::uint32_t ticket = bell->ticket();
    std::shared_ptr<const Entries> all;
    {
      const MutexLock lock(mutex);
      all = groups;
    }
    bool moved = false;
    Deadline nextLook = Clock::now() + kLongestSleep;
    for (const auto& each : *all) {
      const std::shared_ptr<Progressed> group = each->group.lock();
      if (group == nullptr || !enter(*each)) {
        continue;
      }
      const Progressed::Look look = group->lookAsLeader();
      leave(*each);
      if (look.lostLead) {
        return;
      }
      moved |= look.moved;
      nextLook = std::min(nextLook, look.nextLook);
    }
    if (!moved && !stop.load(std::memory_order_seq_cst)) {
      bell->sleep(ticket, nextLook);
    }
  }
}

}  // namespace shardwire::internal
