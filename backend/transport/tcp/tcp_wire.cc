#include "backend/transport/tcp/tcp_wire.h"

#include <sys/epoll.h>

#include <array>

namespace shardwire::internal {

bool TcpWire::poll() {
  if (poller_->numWatched == 0) {
    return false;  // no peer is joined yet: saves a system call
  }
  std::array<epoll_event, 32> events;
  const int numEvents = ::epoll_wait(poller_->epoll.get(), events.data(), static_cast<int>(events.size()), 0);
  bool moved = false;
  for (int i = 0; i < numEvents; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const auto* watch = static_cast<const TcpConnection::Watch*>(event.data.ptr);
    moved |= watch->connection->onReady(watch->isFetches, event.events);
  }
  return moved;
}

}  // namespace shardwire::internal
