#include "backend/base/per_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "backend/base/mutex.h"

namespace shardwire::internal {
namespace {

struct Registry {
  Mutex mutex;
  std::vector<int> entries SW_GUARDED_BY(mutex);
};

Registry& registry() {
  return PerProcess<Registry>::get();
}

TEST(PerProcess, IsOneForAllThreads) {
  std::vector<Registry*> seen(8);
  std::vector<std::thread> threads;
  for (Registry*& each : seen) {
    threads.emplace_back([&each] { each = &registry(); });
  }
  for (std::thread& each : threads) {
    each.join();
  }
  for (const Registry* each : seen) {
    EXPECT_EQ(each, &registry());
  }
}

// The parent holds the lock during the fork, like a thread that does not exist in the child.
TEST(PerProcess, AChildOfForkBeginsWithItsOwn) {
  Registry& mine = registry();
  const MutexLock lock(mine.mutex);
  mine.entries.assign(1, 5);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // a hang is a failure
    Registry& own = registry();
    const MutexLock ownLock(own.mutex);
    ::_exit(&own != &mine && own.entries.empty() && &own == &registry() ? 7 : 8);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 7);
  EXPECT_EQ(mine.entries.size(), 1);
}

}  // namespace
}  // namespace shardwire::internal
