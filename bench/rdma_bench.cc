// Speed of the rdma transport on a device, for comparison with perftest's ib_write_bw and ib_write_lat in turns on the
// same machine (tests/rig/compare_perftest.py does so). Two ranks, forked; one number on standard output.
//
//   rdma_bench bandwidth BYTES COUNT   fetches of BYTES each, many under way: MB/s (2^20 bytes)
//   rdma_bench latency BYTES COUNT     frames of BYTES there and back: microseconds one way, median (polls as perftest
//   does) rdma_bench scatter COUNT           compile_op of 256 rows of 1 KiB, apart, and of 256 KiB in one piece: ratio
//   of the medians
// SHARDWIRE_RDMA_DEVICES chooses the devices.
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/bootstrap/connect.h"
#include "backend/memory/shared_heap.h"
#include "bench/bench_ranks.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"

namespace shardwire::bench {
namespace {

using internal::Connection;
using internal::FetchCount;
using internal::Lane;
using internal::MemoryRun;
using internal::Peers;
using internal::RemoteAddress;

constexpr std::size_t kRegion = std::size_t{16} << 20;
constexpr std::uint32_t kUnderWay = 128;  // as perftest's transmit depth
constexpr Duration kYieldAfter = std::chrono::microseconds(3);
constexpr Duration kSleepAfter = std::chrono::microseconds(200);

Options benchOptions() {
  auto options = Options::fromEnvironment();
  if (!options.isOk()) {
    fail(options.status().message());
  }
  options->transports = "rdma";
  options->timeout = std::chrono::seconds(60);
  return *options;
}

// Polls, offers its core to others, and then sleeps, after about the times that the engine takes: software devices need
// cores too.
class Waiter {
 public:
  explicit Waiter(Peers& peers) : wire_(*peers.wires.at(0)) {}
  void spin() { wire_.poll(); }
  void wait() {
    if (wire_.poll()) {
      idleSince_ = Clock::now();
      return;
    }
    const Duration idle = Clock::now() - idleSince_;
    if (idle > kSleepAfter) {
      wire_.prepareToSleep();
      if (!wire_.poll()) {
        pollfd ready{wire_.readinessFd(), POLLIN, 0};
        ::poll(&ready, 1, 10);
      }
      idleSince_ = Clock::now();
    } else if (idle > kYieldAfter) {
      ::sched_yield();
    }
  }

 private:
  internal::Wire& wire_;
  Deadline idleSince_ = Clock::now();
};

std::byte* heapMemory() {
  static auto memory = internal::allocateShared(kRegion);
  if (!memory.isOk()) {
    fail(memory.status().message());
  }
  return static_cast<std::byte*>(memory->get());
}

void send(Connection& connection, const void* bytes, std::size_t size) {
  const auto room = connection.reserve(Lane::kControl, size, size);
  if (room.empty()) {
    fail("no room for a frame");
  }
  std::memcpy(room.data(), bytes, size);
  connection.commit(Lane::kControl, size);
}

template <typename Wait>
void receive(Connection& connection, void* bytes, std::size_t size, Wait&& wait) {
  std::span<const std::byte> frame;
  while ((frame = connection.peek(Lane::kControl)).empty()) {
    wait();
  }
  std::memcpy(bytes, frame.data(), std::min(size, frame.size()));
  connection.release(Lane::kControl);
}

// Rank 0 fetches from rank 1, which serves until rank 0 sends a stop.
double bandwidth(int rank, Connection& connection, Waiter& waiter, std::size_t bytes, std::uint32_t count) {
  RemoteAddress address;
  if (rank == 1) {
    if (connection.expose(heapMemory(), kRegion, &address) != internal::Reach::kFetch) {
      fail("memory cannot be exposed");
    }
    send(connection, &address, sizeof(address));
    char byte = 0;
    receive(connection, &byte, 1, [&] { waiter.wait(); });
    return 0;
  }
  receive(connection, &address, sizeof(address), [&] { waiter.wait(); });
  std::byte* memory = heapMemory();
  FetchCount pending;
  const auto run = [&](std::uint32_t number) {
    std::uint32_t asked = 0;
    const Deadline start = Clock::now();
    while (asked < number || pending.pending > 0) {
      bool isFull = asked == number || pending.pending >= kUnderWay;
      if (!isFull) {
        const std::size_t offset = asked * bytes % (kRegion - bytes + 1) & ~std::size_t{63};
        const MemoryRun piece{memory + offset, address.value + offset, bytes};
        isFull = !connection.fetch(address.space, {&piece, 1}, &pending);
        asked += isFull ? 0 : 1;
      }
      if (isFull) {
        waiter.wait();
      }
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  run(std::max<std::uint32_t>(8, count / 8));
  const double seconds = run(count);
  send(connection, "s", 1);
  return static_cast<double>(bytes) * count / seconds / (1 << 20);
}

double latency(int rank, Connection& connection, Waiter& waiter, std::size_t bytes, std::uint32_t count) {
  // Neither filled nor read but for a byte, as perftest's: an emulated processor copies slowly.
  const auto sendFrame = [&] {
    const auto room = connection.reserve(Lane::kControl, bytes, bytes);
    if (room.empty()) {
      fail("no room for a frame");
    }
    room[0] = std::byte{1};
    connection.commit(Lane::kControl, bytes);
  };
  char byte = 0;
  std::vector<double> microseconds;
  for (std::uint32_t i = 0; i < count + 10; ++i) {
    const Deadline start = Clock::now();
    if (rank == 0) {
      sendFrame();
    }
    receive(connection, &byte, 1, [&] { waiter.spin(); });
    if (rank == 1) {
      sendFrame();
    }
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() / 2);
  }
  std::nth_element(microseconds.begin(), microseconds.begin() + count / 2, microseconds.end());
  return microseconds[count / 2];
}

// Median seconds of moving 256 x 1 KiB from rank 1 to rank 0; its rows lie `stride` bytes apart on both.
double moveRows(Communicator& group, int rank, std::int64_t stride, int count) {
  const Slice whole{{0, 0}, {256, 1024}};
  LocalSpec spec;
  spec.tensors.push_back({"", Dims{256, 1024}, DType::kUInt8});
  const LocalTensor local{0, Dims{256, 1024}, {{whole, Dims{0, 0}}}};
  (rank == 1 ? spec.inputs : spec.outputs).push_back(local);
  auto op = group.compileOp(spec);
  if (!op.isOk()) {
    fail(op.status().message());
  }
  const TensorView view{heapMemory(), DType::kUInt8, Dims{256, 1024}, Dims{stride, 1}};
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    auto meet = group.barrier();
    if (!meet.isOk() || !(*meet)->wait().isOk()) {
      fail("a barrier failed");
    }
    const Deadline start = Clock::now();
    auto work = rank == 1 ? (*op)->run({&view, 1}, {}) : (*op)->run({}, {&view, 1});
    const Status status = work.isOk() ? (*work)->wait() : work.status();
    if (!status.isOk()) {
      fail(status.message());
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + count / 2, seconds.end());
  return seconds[static_cast<std::size_t>(count / 2)];
}

std::string runRank(int rank, MemoryStore& store, const std::vector<std::string>& words) {
  const auto number = [&](std::size_t i) {
    return i < words.size() ? std::strtoull(words[i].c_str(), nullptr, 10) : 0;
  };
  const Options options = benchOptions();
  if (words[0] == "scatter") {
    auto group = Communicator::create(store, rank, 2, options, "bench");
    if (!group.isOk()) {
      fail(group.status().message());
    }
    const double contiguous = moveRows(**group, rank, 1024, static_cast<int>(number(1)));
    const double scattered = moveRows(**group, rank, 4096, static_cast<int>(number(1)));
    return fmt::format("{:.3f}\n", contiguous / scattered);
  }
  auto peers = internal::connectPeers(store, rank, 2, options, Clock::now() + std::chrono::seconds(30), "bench");
  if (!peers.isOk()) {
    fail(peers.status().message());
  }
  Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
  Waiter waiter(*peers);
  const auto measure = words[0] == "latency" ? latency : bandwidth;
  return fmt::format("{:.3f}\n", measure(rank, connection, waiter, number(1), static_cast<std::uint32_t>(number(2))));
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool isKnown = (words.size() == 3 && (words[0] == "bandwidth" || words[0] == "latency")) ||
                       (words.size() == 2 && words[0] == "scatter");
  if (!isKnown) {
    fmt::print(stderr, "usage: rdma_bench bandwidth|latency BYTES COUNT, or rdma_bench scatter COUNT\n");
    return 2;
  }
  shardwire::MemoryStore store;
  shardwire::bench::BenchRanks ranks(2);
  const auto text = ranks.run(false, [&](int rank) { return shardwire::bench::runRank(rank, store, words); });
  fmt::print("{}", text.value_or(""));
  return text ? 0 : 1;
}
