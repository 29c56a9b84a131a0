#include "backend/c10d/live_groups.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/base/per_process.h"

namespace shardwire::internal {

namespace {

using WeakGroup = c10::weak_intrusive_ptr<ProcessGroupShardwire>;

struct LiveGroups {
  Mutex mutex;
  std::vector<WeakGroup> groups SW_GUARDED_BY(mutex);
};

}  // namespace

void addLiveGroup(const c10::intrusive_ptr<ProcessGroupShardwire>& group) {
  std::vector<WeakGroup> expired;  // released after the lock: the destructor of a group may need Python's lock
  LiveGroups& all = PerProcess<LiveGroups>::get();
  const MutexLock lock(all.mutex);
  const auto end = std::stable_partition(all.groups.begin(), all.groups.end(),
                                         [](const WeakGroup& weak) { return !weak.expired(); });
  expired.assign(std::move_iterator(end), std::move_iterator(all.groups.end()));
  all.groups.erase(end, all.groups.end());
  all.groups.emplace_back(group);
}

void shutdownLiveGroups() {
  std::vector<WeakGroup> groups;
  {
    LiveGroups& all = PerProcess<LiveGroups>::get();
    const MutexLock lock(all.mutex);
    groups.swap(all.groups);
  }
  std::exception_ptr first;  // Ctrl-C: the other groups end nevertheless
  for (const WeakGroup& weak : groups) {
    if (const auto group = weak.lock()) {
      try {
        group->shutdown();
      } catch (...) {
        first = first ? first : std::current_exception();
      }
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace shardwire::internal
