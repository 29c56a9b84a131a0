#include "backend/fabric/fd_watches.h"

#include <errno.h>
#include <sys/epoll.h>

#include <array>
#include <utility>

#include "backend/base/log.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {

Result<Fd> makeEpollSet() {
  Fd made(::epoll_create1(EPOLL_CLOEXEC));
  if (!made.isOpen()) {
    return systemError(errno == EMFILE ? "making an epoll set (raise ulimit -n)" : "making an epoll set", errno);
  }
  return made;
}

Status watchSocket(const Fd& set, int operation, const Fd& socket, std::uint32_t events, void* data) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = data;
  return ::epoll_ctl(set.get(), operation, socket.get(), &event) == 0 ? Status::ok()
                                                                      : systemError("watching a socket", errno);
}

Result<std::shared_ptr<FdWatches>> FdWatches::create() {
  auto ready = makeEpollSet();
  SW_RETURN_IF_ERROR(ready.status());
  ready->closeInChildren();
  return std::shared_ptr<FdWatches>(new FdWatches(std::move(*ready)));
}

void FdWatches::serve() {
  const MutexLock lock(mutex_);
  std::array<epoll_event, 64> events;
  const int numEvents = ::epoll_wait(ready_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < numEvents; ++i) {
    // Looked up by number: a child forked just now may hold a descriptor that was closed here, and with the descriptor
    // the epoll entry of a destroyed watch.
    const auto found = watches_.find(events[static_cast<std::size_t>(i)].data.u64);
    if (found != watches_.end() && found->second->onReady_()) {
      found->second->rearm();
    }
  }
}

FdWatch::FdWatch(std::shared_ptr<FdWatches> watches, int fd, std::uint32_t events, OnReady onReady)
    : watches_(std::move(watches)), fd_(fd), events_(events | EPOLLONESHOT), onReady_(std::move(onReady)) {}

Result<std::unique_ptr<FdWatch>> FdWatch::create(std::shared_ptr<FdWatches> watches, int fd, std::uint32_t events,
                                                 OnReady onReady) {
  FdWatches& set = *watches;
  std::unique_ptr<FdWatch> made(new FdWatch(std::move(watches), fd, events, std::move(onReady)));
  int error = 0;
  {
    const MutexLock lock(set.mutex_);
    epoll_event event{};
    event.events = made->events_;
    event.data.u64 = set.lastId_ + 1;
    if (::epoll_ctl(set.ready_.get(), EPOLL_CTL_ADD, fd, &event) == 0) {
      made->id_ = ++set.lastId_;
      set.watches_[made->id_] = made.get();
    } else {
      error = errno;
    }
  }
  if (error != 0) {
    return systemError("watching a descriptor", error);
  }
  return made;
}

// In a child of fork() the set belongs to the parent, and the thread that held the lock does not exist.
FdWatch::~FdWatch() {
  if (id_ == 0 || !watches_->owner_.isHere()) {
    return;
  }
  const MutexLock lock(watches_->mutex_);
  watches_->watches_.erase(id_);
  ::epoll_ctl(watches_->ready_.get(), EPOLL_CTL_DEL, fd_, nullptr);
}

void FdWatch::rearm() {
  epoll_event event{};
  event.events = events_;
  event.data.u64 = id_;
  if (::epoll_ctl(watches_->ready_.get(), EPOLL_CTL_MOD, fd_, &event) != 0) {
    logWarn("{}", systemError("watching a descriptor", errno).message());
  }
}

}  // namespace shardwire::internal
