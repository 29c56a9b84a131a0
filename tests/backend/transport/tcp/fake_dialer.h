// A peer of a tcp endpoint made by hand, and the check of an error's words. For tests.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "backend/base/crc32c.h"
#include "backend/base/wait_limit.h"
#include "backend/base/wire.h"
#include "backend/fabric/link_message.h"
#include "backend/transport/lanes.h"
#include "backend/transport/tcp/tcp_joining.h"
#include "tests/backend/transport/tcp/tcp_pair.h"

namespace shardwire::testing {

using internal::Fd;
using internal::Link;

// A peer made by hand: speaks the endpoint's protocol as far as the test wants.
class FakeDialer {
 public:
  explicit FakeDialer(const Options& options = {}, Duration patience = std::chrono::seconds(10)) {
    real.options = options;
    auto [near, far] = makeLinkPair();
    link_ = std::make_unique<Link>(std::move(near));
    thread_ = std::thread([this, patience, link = std::move(far)]() mutable {
      real.join(std::move(link), 0, 1, false, Clock::now() + patience);
    });
  }
  ~FakeDialer() { finish(); }

  // The dialer's first message.
  static std::string setup() {
    internal::ByteWriter writer;
    writer.u32(0x50545753);
    writer.u8(internal::kTcpVersion);
    for (const std::uint64_t capacity : internal::laneCapacities(Options{})) {
      writer.u64(capacity);
    }
    writer.u32(0);
    writer.u8(0);  // wants no checksums
    writer.u8(1);  // may have TLS
    writer.u8(0);
    writer.text("");
    writer.u32(internal::crc32c(writer.bytes().data(), writer.bytes().size()));
    return writer.take();
  }
  // Sends the dialer's first message; returns the port on which the other end listens.
  std::uint16_t greet() {
    EXPECT_TRUE(link_->send(setup(), soon()).isOk());
    const auto answer = link_->receive(soon());
    EXPECT_TRUE(answer.isOk()) << answer.status().message();
    internal::ByteReader reader(*answer);
    reader.u32();
    reader.u8();
    for (int lane = 0; lane < internal::kNumLanes; ++lane) {
      reader.u64();
    }
    return static_cast<std::uint16_t>(reader.u32());
  }
  Fd call(std::uint16_t port) const {
    auto socket = internal::startTcp(*internal::makeSocketAddress("127.0.0.1", 0, port));
    EXPECT_TRUE(socket.isOk() && internal::WaitLimit(soon()).waitFor(*socket, POLLOUT, "calling").isOk());
    return std::move(*socket);
  }
  void prove(const Fd& socket) const {
    const auto proof = internal::proveSocket(link_->secret(), "tcp fetches, dialer");
    EXPECT_TRUE(internal::sendSome(socket, internal::framed(internal::asText(proof))).isOk());
  }
  // To be called after the other end has proved its identity on the second socket.
  void agree(const Fd& socket) {
    EXPECT_TRUE(internal::WaitLimit(soon()).waitFor(socket, POLLIN, "waiting for the proof").isOk());
    EXPECT_TRUE(link_->send(std::string(5, '\0'), soon()).isOk());
  }
  Link& link() { return *link_; }
  void finish() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  // All steps: a joined pair, of which this end is a raw socket.
  Fd join() {
    Fd socket = call(greet());
    prove(socket);
    agree(socket);
    finish();
    EXPECT_TRUE(real.status.isOk()) << real.status.message();
    return socket;
  }
  // The other end's last bytes on the stream of frames, up to the end of the stream.
  std::string lastFrames() const {
    std::string all;
    for (ssize_t some = 1; some > 0;) {
      EXPECT_TRUE(internal::WaitLimit(soon()).waitFor(link_->socket(), POLLIN, "reading").isOk());
      std::array<char, 4096> bytes;
      some = ::recv(link_->socket().get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      all.append(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(some, 0)));
      EXPECT_GE(some, 0) << "the stream has not ended";
    }
    return all;
  }
  Status awaitFailure() {
    Status failure;
    for (const auto start = Clock::now(); failure.isOk() && Clock::now() - start < std::chrono::seconds(10);) {
      real.wire->poll();
      failure = real.connection->health();
    }
    return failure;
  }

  TcpRank real;

 private:
  std::unique_ptr<Link> link_;
  std::thread thread_;
};

inline void expectWords(const Status& status, StatusCode code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

}  // namespace shardwire::testing
