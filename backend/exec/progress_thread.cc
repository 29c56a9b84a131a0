#include "backend/exec/progress_thread.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "backend/base/per_process.h"

namespace shardwire::internal {
namespace {

// Longest sleep of the thread: what idle groups are asked meanwhile is heard by then.
constexpr Duration kLongestSleep = std::chrono::milliseconds(100);

struct Threads {
  Mutex mutex;
  std::map<const ProgressBell*, std::weak_ptr<ProgressThread>> byBell SW_GUARDED_BY(mutex);
};
Threads& threadsHere() {
  static PerProcess<Threads> instance;
  return instance.get();
}

}  // namespace

std::shared_ptr<ProgressThread> ProgressThread::of(std::shared_ptr<ProgressBell> bell) {
  Threads& all = threadsHere();
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
  const MutexLock lock(threadsMutex_);
  threads_.emplace_back([state = state_] { state->follow(true); });
}

ProgressThread::~ProgressThread() {
  state_->stop.store(true, std::memory_order_release);
  state_->bell->ring();
  state_->role.stop();
  std::vector<std::thread> threads;
  {
    const MutexLock lock(threadsMutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) {
    // A callback may have dropped the last group: its thread ends by itself.
    std::this_thread::get_id() == thread.get_id() ? thread.detach() : thread.join();
  }
}

void ProgressThread::add(const std::shared_ptr<Progressed>& group) {
  const MutexLock lock(state_->mutex);
  state_->groups.push_back(group);
}

void ProgressThread::remove(const Progressed* group) {
  State& state = *state_;
  const MutexLock lock(state.mutex);
  std::erase_if(state.groups, [&](const auto& each) {
    const auto there = each.lock();
    return there == nullptr || there.get() == group;
  });
  const auto byAnother = [&](const State::Inside& each) { return each.group == group && each.thread != std::this_thread::get_id(); };
  while (std::any_of(state.inside.begin(), state.inside.end(), byAnother)) {
    state.changed.wait(state.mutex);
  }
}

void ProgressThread::ring() {
  state_->bell->ring();
}

void ProgressThread::enterCallbacks(std::uint64_t* turn) {
  if (state_->role.enterCallbacks(turn) && !state_->stop.load(std::memory_order_acquire)) {
    const MutexLock lock(threadsMutex_);
    threads_.emplace_back([state = state_] { state->follow(false); });
  }
}

bool ProgressThread::leaveCallbacks(std::uint64_t turn) {
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

// False: it was removed.
bool ProgressThread::State::enter(const Progressed* group) {
  const MutexLock lock(mutex);
  const bool isThere = std::any_of(groups.begin(), groups.end(), [&](const auto& each) { return each.lock().get() == group; });
  if (isThere) {
    inside.push_back({std::this_thread::get_id(), group});
  }
  return isThere;
}

void ProgressThread::State::leave(const Progressed* group) {
  const MutexLock lock(mutex);
  const auto mine = std::find_if(inside.begin(), inside.end(),
                                 [&](const Inside& each) { return each.group == group && each.thread == std::this_thread::get_id(); });
  inside.erase(mine);
  changed.notifyAll();
}

// Until the end, or until another thread took the lead.
void ProgressThread::State::lead() {
  std::vector<std::weak_ptr<Progressed>> all;
  while (!stop.load(std::memory_order_acquire)) {
    const std::uint32_t ticket = bell->ticket();
    {
      const MutexLock lock(mutex);
      all = groups;
    }
    bool moved = false;
    Deadline nextLook = Clock::now() + kLongestSleep;
    for (const auto& each : all) {
      const std::shared_ptr<Progressed> group = each.lock();
      if (group == nullptr || !enter(group.get())) {
        continue;
      }
      const Progressed::Look look = group->lookAsLeader();
      leave(group.get());
      if (look.lostLead) {
        return;
      }
      moved |= look.moved;
      nextLook = std::min(nextLook, look.nextLook);
    }
    if (!moved && !stop.load(std::memory_order_acquire)) {
      bell->sleep(ticket, nextLook);
    }
  }
}

}  // namespace shardwire::internal
