// Descriptors for which one thread of the process, the fabric's, waits, whatever the groups do. All groups share one
// epoll set, so the watches of a group cost neither a thread nor a descriptor.
//
// A callback runs under the lock of the set. The callback must not wait, and must not make or drop a watch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "backend/base/fd.h"
#include "backend/base/mutex.h"
#include "backend/base/owner_process.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// An epoll set; kSystem when this process has no descriptor left.
Result<Fd> makeEpollSet();
// epoll_ctl(2) for a socket of a set with pointers as its data.
Status watchSocket(const Fd& set, int operation, const Fd& socket, std::uint32_t events, void* data);

class FdWatch;

// Any thread, but for serve().
class FdWatches {
 public:
  static Result<std::shared_ptr<FdWatches>> create();
  // For poll(2): readable when serve() has something to do.
  const Fd& socket() const { return ready_; }
  // Calls the watches with a ready descriptor, without waiting. One thread.
  void serve();

 private:
  friend class FdWatch;
  explicit FdWatches(Fd ready) : ready_(std::move(ready)) {}

  const OwnerProcess owner_;
  const Fd ready_;  // epoll set
  Mutex mutex_;
  std::uint64_t lastId_ SW_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, FdWatch*> watches_ SW_GUARDED_BY(mutex_);
};

// A wait for one descriptor, armed for one event: then `onReady` is called, and returns whether to wait again. rearm()
// also arms the watch again, at any time and from any thread. The descriptor outlives the watch.
class FdWatch {
 public:
  using OnReady = std::function<bool()>;
  // `events`: EPOLLIN, EPOLLOUT. kSystem when the kernel refuses.
  static Result<std::unique_ptr<FdWatch>> create(std::shared_ptr<FdWatches> watches, int fd, std::uint32_t events,
                                                 OnReady onReady);
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;
  // onReady is not called any more once the destructor has returned.
  ~FdWatch();

  void rearm();

 private:
  friend class FdWatches;
  FdWatch(std::shared_ptr<FdWatches> watches, int fd, std::uint32_t events, OnReady onReady);

  const std::shared_ptr<FdWatches> watches_;
  const int fd_;
  const std::uint32_t events_;
  const OnReady onReady_;
  std::uint64_t id_ = 0;  // 0: not in the set
};

}  // namespace shardwire::internal
