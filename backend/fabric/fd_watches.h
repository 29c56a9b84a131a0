// Descriptors that one thread of the process waits for, whatever its groups do: the fabric's. One epoll set for the watches of all groups,
// so that a group costs neither a thread nor a descriptor for them.
//
// A callback runs under the lock of the set. It must not wait, and must not make or drop a watch.
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

class FdWatch;

// Any thread, but for serve().
class FdWatches {
 public:
  static Result<std::shared_ptr<FdWatches>> create();
  // For poll(2): readable when serve() has something to do.
  const Fd& socket() const { return ready_; }
  // Calls those whose descriptor is ready, without waiting. One thread.
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

// One descriptor, waited for once: then `onReady` is called, and says whether to wait again. rearm() does that, too, at any time and from
// any thread. The descriptor outlives the watch.
class FdWatch {
 public:
  using OnReady = std::function<bool()>;
  // `events`: EPOLLIN, EPOLLOUT. kSystem when the kernel refuses.
  static Result<std::unique_ptr<FdWatch>> create(std::shared_ptr<FdWatches> watches, int fd, std::uint32_t events, OnReady onReady);
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;
  // When it returns, onReady has been called for the last time.
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
