// tcp between two ranks of this machine against one plain TCP socket between the same two processes, in turns: what a
// frame, an all_reduce and a send/recv cost, and how fast long tensors travel. `raw_spin` and `raw_exchange` (both
// ranks send, then both receive, as in an all_reduce) poll their socket as our ranks do, `raw_blocking` sleeps in the
// kernel.
#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>

#include "backend/base/wait_limit.h"
#include "backend/bootstrap/connect.h"
#include "backend/fabric/net_socket.h"
#include "bench/bench_options.h"
#include "bench/bench_ranks.h"
#include "bench/report.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"

namespace shardwire::bench {
namespace {

using internal::Fd;
using internal::Lane;

constexpr std::size_t kMessageBytes = 8;
constexpr int kPings = 200;  // in one timed iteration of a latency case
constexpr int kSpins = 64;   // looks before a waiting rank offers its core, as ours do

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

void pause(int* idle) {
  if (++*idle % kSpins == 0) {
    ::sched_yield();
  }
}

// One plain stream between the two ranks, which find each other by the store: a rank has none of its parent's
// descriptors.
class RawSocket {
 public:
  RawSocket(Store& store, int rank) {
    const std::string key = "port of the plain socket";
    if (rank == 0) {
      const Fd listener = orFail(internal::listenTcp(addressOf(0), 1));
      check(store.set(key, std::to_string(orFail(internal::localAddress(listener)).port())));
      check(internal::WaitLimit(soon()).waitFor(listener, POLLIN, "waiting for the other rank"));
      socket_ = orFail(internal::acceptTcp(listener));
    } else {
      socket_ =
          orFail(internal::startTcp(addressOf(static_cast<std::uint16_t>(std::stoi(orFail(store.get(key, soon())))))));
      check(internal::WaitLimit(soon()).waitFor(socket_, POLLOUT, "connecting"));
    }
  }

  void send(const std::byte* bytes, std::size_t size, bool spin) {
    transfer(const_cast<std::byte*>(bytes), size, spin, POLLOUT);
  }
  void receive(std::byte* bytes, std::size_t size, bool spin) { transfer(bytes, size, spin, POLLIN); }

 private:
  static internal::SocketAddress addressOf(std::uint16_t port) {
    return orFail(internal::makeSocketAddress("127.0.0.1", 0, port));
  }

  void transfer(std::byte* bytes, std::size_t size, bool spin, short direction) {
    int idle = 0;
    for (std::size_t at = 0; at < size;) {
      const ssize_t some = direction == POLLIN ? ::recv(socket_.get(), bytes + at, size - at, 0)
                                               : ::send(socket_.get(), bytes + at, size - at, MSG_NOSIGNAL);
      if (some > 0) {
        at += static_cast<std::size_t>(some);
      } else if (some == 0 || errno != EAGAIN) {
        fail("the plain socket broke");
      } else if (spin) {
        pause(&idle);
      } else {
        check(internal::WaitLimit(kNoDeadline).waitFor(socket_, direction, "a plain socket"));
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
    from_.resize(options_.maxBytes, std::byte{1});
    to_.resize(options_.maxBytes, std::byte{2});
    for (int turn = -options_.warmup; turn < options_.iterations; ++turn) {
      counts_ = turn >= 0;
      measure("raw_spin_8B", kPings, [&] { pingPong([&] { rawSend(true); }, [&] { rawReceive(true); }); });
      measure("frame_8B", kPings, [&] { pingPong([&] { sendFrame(); }, [&] { receiveFrame(); }); });
      measure("raw_exchange_8B", kPings, [&] {
        repeat([&] {
          rawSend(true);
          rawReceive(true);
        });
      });
      measure("allreduce_8B", kPings, [&] { repeat([&] { allReduce(); }); });
      measure("raw_blocking_8B", kPings, [&] { pingPong([&] { rawSend(false); }, [&] { rawReceive(false); }); });
      measure("sendrecv_8B", kPings, [&] { pingPong([&] { message(true); }, [&] { message(false); }); });
      measure("raw_long", 1, [&] { rawTransfer(); });
      measure("sendrecv_long", 1, [&] { ourTransfer(); });
      measure("frames_long", 1, [&] { frameTransfer(); });
    }
    Report report{"tcp", {}, {}};
    report.cases = cases_;
    for (const auto& [ours, raw] : {std::pair{"frame_8B", "raw_spin_8B"}, std::pair{"allreduce_8B", "raw_exchange_8B"},
                                    std::pair{"sendrecv_8B", "raw_blocking_8B"}, std::pair{"sendrecv_long", "raw_long"},
                                    std::pair{"frames_long", "raw_long"}}) {
      compare(report, ours, raw);
    }
    return report;
  }

 private:
  CaseResult* find(const std::string& name) {
    const auto found =
        std::find_if(cases_.begin(), cases_.end(), [&](const CaseResult& each) { return each.name == name; });
    return found == cases_.end() ? nullptr : &*found;
  }
  // Of the times of one turn, which lie close to each other: a busy machine disturbs both.
  void compare(Report& report, const char* ours, const char* raw) {
    const CaseResult* a = find(ours);
    const CaseResult* b = find(raw);
    if (a == nullptr || b == nullptr) {
      return;
    }
    std::vector<double> ratios;
    for (std::size_t i = 0; i < a->microseconds.size(); ++i) {
      ratios.push_back(a->microseconds[i] / b->microseconds[i]);
    }
    report.counts.push_back({fmt::format("{}_per_{}", ours, raw), median(ratios)});
  }
  // Microseconds of one of `parts` equal parts.
  void measure(const std::string& name, int parts, const std::function<void()>& timed) {
    if (!options_.wants(name)) {
      return;
    }
    const auto times = ranks_.measure(
        0, 1, [](int) {}, timed);
    if (!counts_) {
      return;
    }
    if (find(name) == nullptr) {
      cases_.push_back({name, name.ends_with("_long") ? options_.maxBytes : 0, {}});
    }
    find(name)->microseconds.push_back(times.front() / parts);
  }
  static void repeat(const std::function<void()>& one) {
    for (int i = 0; i < kPings; ++i) {
      one();
    }
  }
  // Half a round trip is a part.
  void pingPong(const std::function<void()>& send, const std::function<void()>& receive) {
    for (int i = 0; i < kPings; ++i) {
      i % 2 == ranks_.rank() ? send() : receive();
    }
  }
  void rawSend(bool spin) { raw_.send(from_.data(), kMessageBytes, spin); }
  void rawReceive(bool spin) { raw_.receive(to_.data(), kMessageBytes, spin); }
  void allReduce() { await(group_.allReduce(TensorView::contiguous(&number_, DType::kFloat64, {1}), ReduceOp::kMax)); }
  void sendFrame(std::size_t bytes = kMessageBytes, const std::byte* from = nullptr, Lane lane = Lane::kControl) {
    std::span<std::byte> room;
    for (int idle = 0; (room = connection_.reserve(lane, bytes, bytes)).empty(); pause(&idle)) {
      wire_.poll();
    }
    std::memcpy(room.data(), from == nullptr ? from_.data() : from, bytes);
    connection_.commit(lane, bytes);
  }
  std::size_t receiveFrame(std::byte* to = nullptr, Lane lane = Lane::kControl) {
    std::span<const std::byte> frame;
    for (int idle = 0; (frame = connection_.peek(lane)).empty(); pause(&idle)) {
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
    await(ranks_.rank() == 0 ? group_.send(view(from_, from_.size()), peer_, 2)
                             : group_.recv(view(to_, to_.size()), peer_, 2));
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
  double number_ = 1;
  std::vector<CaseResult> cases_;
  bool counts_ = false;
};

int run(const BenchOptions& options) {
  MemoryStore groupStore, peersStore, rawStore;
  BenchRanks ranks(2);
  const auto text = ranks.run(options.pin, [&](int rank) {
    Options environment = orFail(Options::fromEnvironment());
    environment.transports = "tcp";
    if (environment.socketIfname.empty()) {
      environment.socketIfname = "lo";
    }
    RawSocket raw(rawStore, rank);
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
  return shardwire::bench::run(
      shardwire::bench::parseBenchOptions(argc, argv, "shardwire: tcp against a plain socket"));
}
