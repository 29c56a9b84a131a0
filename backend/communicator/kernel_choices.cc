// A process reads the times of its kernels from the host's file, or measures and writes the file. A trial copies one
// row by one way of storing, with source and destination outside of the caches. Each way is tried at several distances
// of destination and source, and counts with its slowest distance, so a way that aliases at one distance loses. The
// rule (fastestLargeStore) turns the times into the choice, so the file holds facts and outlives a better rule.
#include "backend/communicator/kernel_choices.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include "backend/base/evict.h"
#include "backend/base/kept_file.h"
#include "backend/base/log.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kTrialBytes = std::size_t{128} << 10;
constexpr std::size_t kPageBytes = 4096;
constexpr int kRounds = 4;
// Distances of the destination above the source modulo a page. At 64 bytes, two streams of short stores alias.
constexpr std::array<std::size_t, 3> kDistances = {0, 64, 2048};
// Ordinary stores read a line and write the line later; stores past the cache only write.
constexpr double kOrdinaryMoves = 3, kStreamMoves = 2;
// A pair must gain this much over one stream.
constexpr double kPairPaysFrom = 0.97;

// The times in use; 0: not chosen yet. There is no lock, since a child of fork() could find the lock taken for ever.
// `pairTime` is set last.
std::atomic<Duration::rep> aheadTime = 0;
std::atomic<Duration::rep> streamTime = 0;
std::atomic<Duration::rep> pairTime = 0;

std::string fileName() {
  return fmt::format("large-stores-1-{}", kernels().name);
}

std::optional<LargeStoreTimes> parseTimes(std::string_view text) {
  std::istringstream in{std::string(text)};
  Duration::rep ahead = 0, stream = 0, pair = 0;
  std::string rest;
  if (!(in >> ahead >> stream >> pair) || in >> rest || ahead <= 0 || stream <= 0 || pair <= 0) {
    return std::nullopt;
  }
  return LargeStoreTimes{Duration(ahead), Duration(stream), Duration(pair)};
}

// The least time of some copies, all of them out of cold memory and into cold memory.
class Trial {
 public:
  Trial(RowStore store, std::size_t distance) : store_(store), distance_(distance) {}
  Duration least() const { return least_; }
  RowStore store() const { return store_; }

  void run(std::span<std::byte> memory) {
    std::byte* const src = memory.data();
    std::byte* const dst = src + kTrialBytes + kPageBytes + distance_;
    evict(memory);
    const auto start = Clock::now();
    kernels().copyRows(dst, 0, src, 0, kTrialBytes, 1, store_);
    kernels().fence();
    least_ = std::min(least_, std::max(Clock::now() - start, Duration(1)));
  }

 private:
  RowStore store_;
  std::size_t distance_;
  Duration least_ = Duration::max();
};

std::string_view nameOf(RowStore store) {
  switch (store) {
    case RowStore::kStreamPair:
      return "two streams past the caches";
    case RowStore::kStream:
      return "one stream past the caches";
    default:
      return "ordinary stores";
  }
}

double rateOf(Duration::rep nanoseconds) {
  return static_cast<double>(kTrialBytes) / static_cast<double>(nanoseconds);  // bytes per nanosecond are GB/s
}

std::string whyThisIsa() {
  const char* wanted = ::getenv("SHARDWIRE_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    return "the widest of this CPU";
  }
  return std::string_view(wanted) == kernels().name
             ? "by SHARDWIRE_ISA"
             : fmt::format("the widest of this CPU: SHARDWIRE_ISA={} is none that it has", wanted);
}

}  // namespace

RowStore fastestLargeStore(const LargeStoreTimes& times) {
  const auto pair = static_cast<double>(times.pair.count()), stream = static_cast<double>(times.stream.count());
  const bool isPair = pair < kPairPaysFrom * stream;
  if (static_cast<double>(times.ahead.count()) * kOrdinaryMoves / kStreamMoves < std::min(pair, stream)) {
    return RowStore::kAhead;
  }
  return isPair ? RowStore::kStreamPair : RowStore::kStream;
}

LargeStoreTimes measureLargeStores() {
  const std::size_t bytes = 2 * (kTrialBytes + 2 * kPageBytes);
  const auto memory = std::make_unique<std::byte[]>(bytes);  // written, so that no trial meets a fresh page
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(memory.get()) % kPageBytes;
  const std::span<std::byte> pages(memory.get() + head, bytes - kPageBytes);
  std::vector<Trial> trials;
  for (const RowStore store : {RowStore::kAhead, RowStore::kStream, RowStore::kStreamPair}) {
    for (const std::size_t distance : kDistances) {
      trials.emplace_back(store, distance);
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Trial& trial : trials) {
      trial.run(pages);
    }
  }
  LargeStoreTimes times;
  for (const Trial& trial : trials) {
    Duration& slowest = trial.store() == RowStore::kAhead    ? times.ahead
                        : trial.store() == RowStore::kStream ? times.stream
                                                             : times.pair;
    slowest = std::max(slowest, trial.least());
  }
  return times;
}

std::string hostChoicesFolder() {
  return fmt::format("/dev/shm/shardwire-{}", ::geteuid());
}

LargeStoreTimes largeStoreTimes(const std::string& folder) {
  const std::optional<std::string> kept = readKept(fmt::format("{}/{}", folder, fileName()));
  if (const auto times = kept.has_value() ? parseTimes(*kept) : std::nullopt; times.has_value()) {
    return *times;
  }
  const LargeStoreTimes times = measureLargeStores();
  const Status written = writeKept(
      folder, fileName(), fmt::format("{} {} {}\n", times.ahead.count(), times.stream.count(), times.pair.count()));
  if (!written.isOk()) {
    logInfo("each process of this host measures how to store large moves: {}", written.message());
  }
  return times;
}

void chooseLargeStore() {
  if (pairTime.load(std::memory_order_acquire) != 0) {
    return;
  }
  const LargeStoreTimes times = largeStoreTimes(hostChoicesFolder());
  useLargeStore(fastestLargeStore(times));
  aheadTime.store(times.ahead.count(), std::memory_order_relaxed);
  streamTime.store(times.stream.count(), std::memory_order_relaxed);
  pairTime.store(times.pair.count(), std::memory_order_release);
}

std::string describeKernels() {
  const Duration::rep pair = pairTime.load(std::memory_order_acquire);
  const std::string rates =
      pair == 0 ? "not measured"
                : fmt::format("measured on this host, GB/s: ordinary {:.1f}, one stream {:.1f}, two {:.1f}",
                              rateOf(aheadTime.load(std::memory_order_relaxed)),
                              rateOf(streamTime.load(std::memory_order_relaxed)), rateOf(pair));
  return fmt::format("kernels: {} ({}); large moves: {} ({})\n", kernels().name, whyThisIsa(), nameOf(largeStore()),
                     rates);
}

}  // namespace shardwire::internal
