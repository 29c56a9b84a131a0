// Two ends of a TCP stream, and two ranks joined by tcp, in one process without a bootstrap. For tests.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <thread>
#include <utility>

#include "backend/base/wait_limit.h"
#include "backend/fabric/net_socket.h"
#include "backend/transport/endpoint.h"

namespace shardwire::testing {

inline Deadline soon() {
  return Clock::now() + std::chrono::seconds(10);
}

// Connected sockets on loopback.
inline std::pair<internal::Fd, internal::Fd> makeTcpPair() {
  const auto listener = internal::listenTcp(*internal::makeSocketAddress("127.0.0.1", 0, 0), 1);
  EXPECT_TRUE(listener.isOk()) << listener.status().message();
  auto near = internal::startTcp(*internal::localAddress(*listener));
  EXPECT_TRUE(near.isOk() && internal::WaitLimit(soon()).waitFor(*listener, POLLIN, "pairing").isOk());
  auto far = internal::acceptTcp(*listener);
  EXPECT_TRUE(far.isOk() && far->isOpen());
  return {std::move(*near), std::move(*far)};
}

inline internal::Digest testSecret() {
  internal::Digest secret;
  secret.fill(7);
  return secret;
}

inline std::pair<internal::Link, internal::Link> makeLinkPair() {
  auto [near, far] = makeTcpPair();
  return {internal::Link(std::move(near), "far end", testSecret()),
          internal::Link(std::move(far), "near end", testSecret())};
}

// One rank with one connection. Members are destroyed in the right order.
struct TcpRank {
  Options options;
  std::unique_ptr<internal::Endpoint> endpoint;
  std::unique_ptr<internal::Wire> wire;
  std::unique_ptr<internal::Connection> connection;
  Status status;

  void join(internal::Link link, Rank self, Rank peer, bool isDialer, Deadline deadline = soon()) {
    auto made = internal::makeTcpEndpoint({self, 2, "host", &options});
    status = made.status();
    if (!made.isOk()) {
      return;
    }
    endpoint = std::move(*made);
    auto joined = endpoint->connect(std::move(link), peer, isDialer, endpoint->address(),
                                    "rank " + std::to_string(peer), deadline);
    status = joined.status();
    if (joined.isOk()) {
      connection = std::move(*joined);
    }
    wire = endpoint->takeWire();
  }
};

struct TcpRanks {
  TcpRank ranks[2];

  void join() {
    auto [near, far] = makeLinkPair();
    std::thread dialer([&, link = std::move(near)]() mutable { ranks[1].join(std::move(link), 1, 0, true); });
    ranks[0].join(std::move(far), 0, 1, false);
    dialer.join();
  }
  internal::Connection& connection(Rank rank) { return *ranks[rank].connection; }
  void poll() {
    for (TcpRank& rank : ranks) {
      rank.wire->poll();
    }
  }
  // Polls both until `done`; false after 30 s.
  template <typename Done>
  bool pollUntil(Done done) {
    for (const auto start = Clock::now(); !done(); poll()) {
      if (Clock::now() - start > std::chrono::seconds(30)) {
        return false;
      }
    }
    return true;
  }
};

}  // namespace shardwire::testing
