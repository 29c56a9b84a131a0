// What a group costs by its number of ranks: seconds to make, bytes through the store, and per connection memory, descriptors and threads.
// Ranks are threads of one process, so per-process costs are seen once and per-rank costs n times; docs/scale.md reckons with the figures.
// SHARDWIRE_TRANSPORTS chooses the transport.
#include <dirent.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench_ranks.h"
#include "shardwire/communicator.h"
#include "tests/support/memory_store.h"

namespace shardwire::bench {
namespace {

// Counts what ranks put into the store and take out of it.
class CountingStore final : public Store {
 public:
  Status set(const std::string& key, std::string_view value) override {
    in += key.size() + value.size();
    return store_.set(key, value);
  }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    auto value = store_.get(key, deadline);
    if (value.isOk()) {
      out += key.size() + value->size();
    }
    return value;
  }

  std::atomic<std::size_t> in{0};
  std::atomic<std::size_t> out{0};

 private:
  testing::MemoryStore store_{std::size_t{64} << 20};
};

struct Footprint {
  double residentKib = 0;
  double descriptors = 0;
};

std::size_t numDescriptors() {
  std::size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) {
    ++count;
  }
  ::closedir(folder);
  return count;
}

Footprint footprint() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return {static_cast<double>(resident) * 4, static_cast<double>(numDescriptors())};
}

void onAll(int ranks, const std::function<void(Rank)>& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(body, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void measure(int ranks, const Options& options) {
  CountingStore store;
  std::vector<std::unique_ptr<Communicator>> groups(static_cast<std::size_t>(ranks));
  const Footprint before = footprint();
  const auto start = Clock::now();
  onAll(ranks, [&](Rank rank) {
    auto group = Communicator::create(store, rank, ranks, options, "bench");
    if (!group.isOk()) {
      fail(group.status().message());
    }
    groups[static_cast<std::size_t>(rank)] = std::move(*group);
  });
  const std::chrono::duration<double, std::milli> made = Clock::now() - start;
  const Footprint idle = footprint();
  // One exchange with everybody touches what is used of each connection's buffers.
  onAll(ranks, [&](Rank rank) {
    std::vector<float> values(1024, 1.0F);
    auto work =
        groups[static_cast<std::size_t>(rank)]->allReduce(TensorView::contiguous(values.data(), DType::kFloat32, {1024}), ReduceOp::kSum);
    if (!work.isOk() || !(*work)->wait().isOk()) {
      fail("all_reduce failed");
    }
  });
  const Footprint used = footprint();
  const double connections = std::max(1, ranks * (ranks - 1));
  fmt::print("{:>6} {:>10.1f} {:>14.0f} {:>14.0f} {:>16.1f} {:>16.1f} {:>12.2f}\n", ranks, made.count(),
             static_cast<double>(store.in) / ranks, static_cast<double>(store.out) / ranks,
             (idle.residentKib - before.residentKib) / connections, (used.residentKib - before.residentKib) / connections,
             (used.descriptors - before.descriptors) / connections);
}

int run() {
  auto options = Options::fromEnvironment();
  if (!options.isOk()) {
    fail(options.status().message());
  }
  fmt::print(
      "# per rank: store bytes in and out; per connection (one end): KiB resident when made, after one 4 KiB all_reduce, descriptors\n");
  fmt::print("{:>6} {:>10} {:>14} {:>14} {:>16} {:>16} {:>12}\n", "ranks", "made ms", "store in B", "store out B", "KiB idle", "KiB used",
             "descriptors");
  for (const int ranks : {2, 4, 8, 16, 32, 64}) {
    measure(ranks, *options);
  }
  return 0;
}

}  // namespace
}  // namespace shardwire::bench

int main() {
  return shardwire::bench::run();
}
