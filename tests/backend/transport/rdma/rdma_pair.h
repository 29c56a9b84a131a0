// Two ends of an RDMA connection in one process, without a bootstrap. Needs a device.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>

#include "backend/transport/rdma/rdma_endpoint.h"

namespace shardwire::testing {

struct RdmaEnd {
  std::unique_ptr<internal::Wire> wire;
  std::unique_ptr<internal::Connection> connection;  // destroyed before the wire
  Status failure;                                    // why there is none
};

// Each end with a separate table of verbs.
class RdmaPair {
 public:
  RdmaPair(const internal::VerbsApi& first, const internal::VerbsApi& second) {
    options_.transports = "rdma";
    int sockets[2];
    SW_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0);
    const internal::VerbsApi* apis[2] = {&first, &second};
    std::array<std::unique_ptr<internal::Endpoint>, 2> endpoints;
    for (std::size_t i = 0; i < 2; ++i) {
      auto made = internal::makeRdmaEndpoint({static_cast<Rank>(i), 2, "here", &options_}, *apis[i]);
      if (!made.isOk()) {
        ends[i].failure = made.status();
        return;
      }
      endpoints[i] = std::move(*made);
    }
    std::array<std::thread, 2> threads;
    for (std::size_t i = 0; i < 2; ++i) {
      threads[i] = std::thread([&, i] {
        internal::Link link{internal::Fd(sockets[i]), "socketpair"};
        auto connection = endpoints[i]->connect(
            std::move(link), static_cast<Rank>(1 - i), i == 1, endpoints[1 - i]->address(),
            "rank " + std::to_string(1 - i) + " (in this process)", Clock::now() + std::chrono::seconds(10));
        ends[i].failure = connection.status();
        ends[i].wire = endpoints[i]->takeWire();
        if (connection.isOk()) {
          ends[i].connection = std::move(*connection);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  bool isJoined() const { return ends[0].connection != nullptr && ends[1].connection != nullptr; }
  void poll() {
    for (const RdmaEnd& end : ends) {
      end.wire->poll();
    }
  }
  // Polls both ends; false when `isTrue` returns false for 10 s.
  bool pollUntil(const std::function<bool()>& isTrue) {
    const Deadline until = Clock::now() + std::chrono::seconds(10);
    while (!isTrue()) {
      if (Clock::now() > until) {
        return false;
      }
      poll();
    }
    return true;
  }
  // One contiguous fetch by end 0 from end 1.
  void fetch(const internal::RemoteAddress& from, void* to, std::size_t bytes, internal::FetchCount* count) {
    const internal::MemoryRun run{static_cast<std::byte*>(to), from.value, bytes};
    ASSERT_TRUE(pollUntil([&] { return ends[0].connection->fetch(from.space, {&run, 1}, count); }));
  }

  std::array<RdmaEnd, 2> ends;

 private:
  Options options_;
};

}  // namespace shardwire::testing
