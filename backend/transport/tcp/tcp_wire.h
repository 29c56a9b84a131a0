// The wire of all tcp connections of a rank: one epoll set. Threads: see Wire.
#pragma once

#include <memory>

#include "backend/transport/tcp/tcp_connection.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class TcpWire final : public Wire {
 public:
  explicit TcpWire(std::shared_ptr<TcpPoller> poller) : poller_(std::move(poller)) {}

  bool poll() override;
  int readinessFd() const override { return poller_->epoll.get(); }

 private:
  std::shared_ptr<TcpPoller> poller_;
};

}  // namespace shardwire::internal
