// tcp between two ranks of this machine against one plain TCP socket between the same two processes, in turns: what a frame and a send/recv
// cost, and how fast long tensors travel. `raw_spin` polls its socket as our ranks do, `raw_blocking` sleeps in the kernel.
#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>

#include "backend/bootstrap/connect.h"
#include "backend/transport/net_socket.h"
#include "bench/bench_options.h"
#include "bench/bench_ranks.h"
#include "bench/bench_store.h"
#include "bench/report.h"
#include "shardwire/communicator.h"

namespace shardwire::bench {
namespace {

using internal::Fd;
using internal::Lane;

constexpr std::size_t kMessageBytes = 8;
constexpr int kPings = 200;  // in one timed iteration of a latency case

Deadline soon() {
  return Clock::now() + std::chrono::seconds(30);
}

template <typename T>
T orFail(Result<T> result) {
  if (!result.isOk()) {
    fail(result.status().message());
  }
  return std::move(*result);
}

void check(const Status& status) {
  if (!status.isOk()) {
    fail(status.message());
  }
}

// One plain stream between the two ranks.
class RawSocket {
 public:
  RawSocket(const Fd& listener, int rank) {
    if (rank == 0) {
      check(internal::waitForSocket(listener, POLLIN, soon(), "waiting for the other rank"));
      socket_ = orFail(internal::acceptTcp(listener));
    } else {
      socket_ = orFail(internal::startTcp(orFail(internal::localAddress(listener))));
      check(internal::waitForSocket(socket_, POLLOUT, soon(), "connecting"));
    }
  }

  void send(const std::byte* bytes, std::size_t size, bool spin) { transfer(const_cast<std::byte*>(bytes), size, spin, POLLOUT); }
  void receive(std::byte* bytes, std::size_t size, bool spin) { transfer(bytes, size, spin, POLLIN); }

 private:
  void transfer(std::byte* bytes, std::size_t size, bool spin, short direction) {
    for (std::size_t at = 0; at < size;) {
      const ssize_t some = direction == POLLIN ? ::recv(socket_.get(), bytes + at, size - at, 0)
                                               : ::send(socket_.get(), bytes + at, size - at, MSG_NOSIGNAL);
      if (some > 0) {
        at += static_cast<std::size_t>(some);
      } else if (some == 0 || errno != EAGAIN) {
        fail("the plain socket broke");
      } else if (!spin) {
        check(internal::waitForSocket(socket_, direction, kNoDeadline, "a plain socket"));
      }
    }
  }

  Fd socket_;
};

class TcpBench {
 public:
  TcpBench(BenchRanks& ranks, RawSocket& raw, internal::Peers& peers, Communicator& group, const BenchOptions& options)
      : ranks_(ranks),
        raw_(raw),
        wire_(*peers.wires.at(0)),
        group_(group),
        options_(options),
        peer_(1 - ranks.rank()),
        connection_(*peers.connections[static_cast<std::size_t>(peer_)]) {}

  Report run() {
    Report report{"tcp", {}, {}};
    CaseResult rawSpin{"raw_spin_8B", 0, {}}, rawBlocking{"raw_blocking_8B", 0, {}}, frames{"frame_8B", 0, {}},
        messages{"sendrecv_8B", 0, {}};
    CaseResult rawLong{"raw_long", options_.maxBytes, {}}, ourLong{"sendrecv_long", options_.maxBytes, {}},
        staged{"frames_long", options_.maxBytes, {}};
    from_.resize(options_.maxBytes, std::byte{1});
    to_.resize(options_.maxBytes, std::byte{2});
    for (int turn = -options_.warmup; turn < options_.iterations; ++turn) {
      const bool counts = turn >= 0;
      measure(rawSpin, counts, kPings, [&] { pingPong([&] { rawPing(true); }, [&] { rawPong(true); }); });
      measure(frames, counts, kPings, [&] {
        pingPong(
            [&] {
              sendFrame();
              receiveFrame();
            },
            [&] {
              receiveFrame();
              sendFrame();
            });
      });
      measure(rawBlocking, counts, kPings, [&] { pingPong([&] { rawPing(false); }, [&] { rawPong(false); }); });
      measure(messages, counts, kPings, [&] {
        pingPong(
            [&] {
              message(true);
              message(false);
            },
            [&] {
              message(false);
              message(true);
            });
      });
      measure(rawLong, counts, 1, [&] { rawTransfer(); });
      measure(ourLong, counts, 1, [&] { ourTransfer(); });
      measure(staged, counts, 1, [&] { frameTransfer(); });
    }
    for (const CaseResult* each : {&rawSpin, &frames, &rawBlocking, &messages, &rawLong, &ourLong, &staged}) {
      if (options_.wants(each->name)) {
        report.cases.push_back(*each);
      }
    }
    if (options_.only.empty()) {
      report.counts.push_back({"frame_8B / raw_spin_8B", median(frames.microseconds) / median(rawSpin.microseconds)});
      report.counts.push_back({"sendrecv_8B / raw_spin_8B", median(messages.microseconds) / median(rawSpin.microseconds)});
      report.counts.push_back({"sendrecv_8B / raw_blocking_8B", median(messages.microseconds) / median(rawBlocking.microseconds)});
      report.counts.push_back({"GB/s: sendrecv / raw", median(rawLong.microseconds) / median(ourLong.microseconds)});
      report.counts.push_back({"GB/s: frames / raw", median(rawLong.microseconds) / median(staged.microseconds)});
    }
    return report;
  }

 private:
  // Microseconds of one of `parts` equal parts.
  void measure(CaseResult& result, bool counts, int parts, const std::function<void()>& timed) {
    if (!options_.wants(result.name)) {
      return;
    }
    const auto times = ranks_.measure(
        0, 1, [](int) {}, timed);
    if (counts) {
      result.microseconds.push_back(times.front() / parts);
    }
  }
  // Half a round trip is a part: kPings / 2 round trips.
  void pingPong(const std::function<void()>& ping, const std::function<void()>& pong) {
    for (int i = 0; i < kPings / 2; ++i) {
      ranks_.rank() == 0 ? ping() : pong();
    }
  }
  void rawPing(bool spin) {
    raw_.send(from_.data(), kMessageBytes, spin);
    raw_.receive(to_.data(), kMessageBytes, spin);
  }
  void rawPong(bool spin) {
    raw_.receive(to_.data(), kMessageBytes, spin);
    raw_.send(from_.data(), kMessageBytes, spin);
  }
  void sendFrame(std::size_t bytes = kMessageBytes, const std::byte* from = nullptr, Lane lane = Lane::kControl) {
    std::span<std::byte> room;
    while ((room = connection_.reserve(lane, bytes, bytes)).empty()) {
      wire_.poll();
    }
    std::memcpy(room.data(), from == nullptr ? from_.data() : from, bytes);
    connection_.commit(lane, bytes);
  }
  std::size_t receiveFrame(std::byte* to = nullptr, Lane lane = Lane::kControl) {
    std::span<const std::byte> frame;
    while ((frame = connection_.peek(lane)).empty()) {
      wire_.poll();
    }
    const std::size_t size = frame.size();
    std::memcpy(to == nullptr ? to_.data() : to, frame.data(), size);
    connection_.release(lane);
    return size;
  }
  void message(bool isSend) {
    await(isSend ? group_.send(view(from_, kMessageBytes), peer_, 1) : group_.recv(view(to_, kMessageBytes), peer_, 1));
  }
  void rawTransfer() {
    if (ranks_.rank() == 0) {
      raw_.send(from_.data(), from_.size(), false);
    } else {
      raw_.receive(to_.data(), to_.size(), false);
    }
  }
  void ourTransfer() {
    await(ranks_.rank() == 0 ? group_.send(view(from_, from_.size()), peer_, 2) : group_.recv(view(to_, to_.size()), peer_, 2));
  }
  void frameTransfer() {
    const std::size_t longest = connection_.maxFrameBytes(Lane::kBulk);
    for (std::size_t at = 0; at < from_.size();) {
      if (ranks_.rank() == 0) {
        const std::size_t some = std::min(longest, from_.size() - at);
        sendFrame(some, from_.data() + at, Lane::kBulk);
        at += some;
      } else {
        at += receiveFrame(to_.data() + at, Lane::kBulk);
      }
    }
    if (ranks_.rank() == 0) {
      receiveFrame();  // else what is still in the ring would wait for the next poll
    } else {
      sendFrame();
    }
  }
  static TensorView view(std::vector<std::byte>& bytes, std::size_t size) {
    return TensorView::contiguous(bytes.data(), DType::kUInt8, {static_cast<std::int64_t>(size)});
  }
  static void await(const Result<WorkPtr>& work) { check(work.isOk() ? (*work)->wait() : work.status()); }

  BenchRanks& ranks_;
  RawSocket& raw_;
  internal::Wire& wire_;
  Communicator& group_;
  const BenchOptions& options_;
  const Rank peer_;
  internal::Connection& connection_;
  std::vector<std::byte> from_, to_;
};

int run(const BenchOptions& options) {
  BenchStore groupStore, peersStore;
  BenchRanks ranks(2);
  const Fd listener = orFail(internal::listenTcp(orFail(internal::makeSocketAddress("127.0.0.1", 0, 0)), 1));
  const auto text = ranks.run(options.pin, [&](int rank) {
    Options environment = orFail(Options::fromEnvironment());
    environment.transports = "tcp";
    if (environment.socketIfname.empty()) {
      environment.socketIfname = "lo";
    }
    RawSocket raw(listener, rank);
    auto peers = orFail(internal::connectPeers(peersStore, rank, 2, environment, soon(), "bench"));
    const auto group = orFail(Communicator::create(groupStore, rank, 2, environment, "bench"));
    const std::string report = toText(TcpBench(ranks, raw, peers, *group, options).run());
    ranks.barrier();  // nobody leaves while the other still needs it
    return report;
  });
  if (!text.has_value()) {
    return 1;
  }
  print(fromText(*text), options);
  return 0;
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  return shardwire::bench::run(shardwire::bench::parseBenchOptions(argc, argv, "shardwire: tcp against a plain socket"));
}
