#include "backend/exec/process_failures.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/base/per_process.h"
#include "shardwire/types.h"

namespace shardwire::internal {
namespace {

constexpr Duration kEndsBecauseOfIt = std::chrono::minutes(1);

struct Group {
  ProcessGroup group;
  std::function<void()> changed;
  std::uint64_t since = 0;  // the version when the group was added
};

struct Failure {
  ProcessGroup group;
  std::string text;
  std::uint64_t version = 0;                            // the version that this failure made
  Clock::time_point overAt = Clock::time_point::max();  // when the group was shut down
};

struct Process {
  Mutex mutex;
  std::vector<Group> groups SW_GUARDED_BY(mutex);      // oldest first, so that the order depends on no address
  std::vector<Failure> failures SW_GUARDED_BY(mutex);  // oldest first
  std::atomic<std::uint64_t> version{0};
};

}  // namespace

void addProcessGroup(const ProcessGroup& group, std::function<void()> changed) {
  Process& all = PerProcess<Process>::get();
  const MutexLock lock(all.mutex);
  all.groups.push_back({group, std::move(changed), all.version.load(std::memory_order_relaxed)});
}

void removeProcessGroup(const ProcessGroup& group) {
  Process& all = PerProcess<Process>::get();
  const MutexLock lock(all.mutex);
  std::erase_if(all.groups, [&](const Group& each) { return each.group == group; });
  const auto now = Clock::now();
  std::erase_if(all.failures, [&](const Failure& each) {
    return each.overAt != Clock::time_point::max() && now - each.overAt > kEndsBecauseOfIt;
  });
  for (Failure& each : all.failures) {
    if (each.group == group && each.overAt == Clock::time_point::max()) {
      each.overAt = now;
      each.group.group = nullptr;  // another group may have this address soon
      all.version.fetch_add(1, std::memory_order_release);
    }
  }
}

void addProcessFailure(const ProcessGroup& group, std::string text) {
  Process& all = PerProcess<Process>::get();
  std::vector<std::function<void()>> others;
  {
    const MutexLock lock(all.mutex);
    const std::uint64_t version = all.version.fetch_add(1, std::memory_order_release) + 1;
    all.failures.push_back({group, std::move(text), version});
    for (const Group& other : all.groups) {
      if (other.group.process == group.process && other.group.group != group.group) {
        others.push_back(other.changed);
      }
    }
  }
  std::for_each(others.begin(), others.end(), [](const auto& changed) { changed(); });
}

std::uint64_t processFailuresVersion() {
  return PerProcess<Process>::get().version.load(std::memory_order_acquire);
}

std::string processFailureBeside(const ProcessGroup& group, bool evenOver) {
  Process& all = PerProcess<Process>::get();
  const MutexLock lock(all.mutex);
  const auto now = Clock::now();
  const auto own = std::ranges::find_if(all.groups, [&](const Group& each) { return each.group == group; });
  const std::uint64_t since = own == all.groups.end() ? 0 : own->since;
  const auto found = std::find_if(all.failures.begin(), all.failures.end(), [&](const Failure& each) {
    const bool isOver = each.overAt != Clock::time_point::max();
    return each.version > since && each.group.process == group.process && each.group.group != group.group &&
           (!isOver || (evenOver && now - each.overAt <= kEndsBecauseOfIt));
  });
  return found == all.failures.end() ? std::string() : found->text;
}

void forgetProcessFailures() {
  Process& all = PerProcess<Process>::get();
  const MutexLock lock(all.mutex);
  all.failures.clear();
  all.version.store(0);
}

}  // namespace shardwire::internal
