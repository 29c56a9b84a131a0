#include "backend/base/fd.h"

#include <pthread.h>
#include <unistd.h>

#include <unordered_set>

#include "backend/base/mutex.h"
#include "shardwire/status.h"

namespace shardwire::internal {
namespace {

// Descriptors that a child must close. Process-wide by nature.
struct NotForChildren {
  Mutex mutex;
  std::unordered_set<int> fds SW_GUARDED_BY(mutex);
  std::uint32_t numForks SW_GUARDED_BY(mutex) = 0;  // forks on the way to this process
};
NotForChildren& notForChildren() {
  static auto* made = new NotForChildren;  // never destroyed: descriptors may outlive static destructors
  return *made;
}

// The mutex is held over the fork, so the list is complete when the child reads it.
void beforeFork() SW_NO_THREAD_SAFETY_ANALYSIS {
  notForChildren().mutex.lock();
}
void afterForkInParent() SW_NO_THREAD_SAFETY_ANALYSIS {
  notForChildren().mutex.unlock();
}
void afterForkInChild() SW_NO_THREAD_SAFETY_ANALYSIS {
  NotForChildren& list = notForChildren();
  for (const int fd : list.fds) {
    ::close(fd);
  }
  list.fds.clear();
  ++list.numForks;
  list.mutex.unlock();
}

}  // namespace

void Fd::closeInChildren() {
  static const int registered = ::pthread_atfork(beforeFork, afterForkInParent, afterForkInChild);
  SW_CHECK(registered == 0);  // ENOMEM
  if (fd_ < 0) {
    return;
  }
  NotForChildren& list = notForChildren();
  const MutexLock lock(list.mutex);
  list.fds.insert(fd_);
  forks_ = list.numForks;
}

void Fd::reset(int fd) {
  if (fd_ >= 0 && forks_ == kInherited) {
    ::close(fd_);  // nothing can be done about an error, and Linux closes the descriptor in any case
  } else if (fd_ >= 0) {
    NotForChildren& list = notForChildren();
    const MutexLock lock(list.mutex);
    if (std::exchange(forks_, kInherited) ==
        list.numForks) {  // else this process closed the descriptor when it was forked
      list.fds.erase(fd_);
      ::close(fd_);
    }
  }
  fd_ = fd;
}

}  // namespace shardwire::internal
