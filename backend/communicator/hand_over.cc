// A trial passes 2 MiB through a ring of 1 MiB, as two ranks of a host do: this thread packs segments, and a second
// thread copies each segment out while this thread packs the next one. Each way of storing counts with its best trial.
// A trial beside other work can take a hundred times as long, so the measurement ends early when its time is over, and
// counts only when both threads plainly ran at the same time.
#include "backend/communicator/hand_over.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <system_error>
#include <thread>

#include "ops/reduce/isa_kernels.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kSegmentBytes = std::size_t{128} << 10;
constexpr std::size_t kRingSegments = 8;
constexpr std::size_t kRingBytes = kRingSegments * kSegmentBytes;
constexpr std::size_t kBytes = kHandOverBytes;
constexpr std::size_t kSegments = kBytes / kSegmentBytes;
constexpr int kTrialsOfEach = 8;
constexpr Duration kMaxTime = std::chrono::milliseconds(40);
// Two cores that run together pass on at least 2 GB/s.
constexpr Duration kPlausible = Duration(kBytes / 2);
// A tie goes to stores past the caches, which leave the caches to the program, and to fetching ahead, which gains more
// where the source is in memory.
constexpr double kPaysFrom = 0.95;

bool isMuchLess(Duration one, Duration other) {
  return static_cast<double>(one.count()) < kPaysFrom * static_cast<double>(other.count());
}

// A rank that is bound to one core has its reader on another core. The kernel takes from the set what the process may
// use.
void useAllCores() {
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  static_cast<void>(::sched_setaffinity(0, sizeof all, &all));
}

class Ring {
 public:
  explicit Ring(std::span<std::byte> memory)
      : source_(memory.subspan(0, kBytes)),
        target_(memory.subspan(kBytes, kBytes)),
        ring_(memory.subspan(2 * kBytes)) {}

  Duration time(RowStore writes, RowStore reads) {
    packed_ = taken_ = 0;
    isReady_ = false;
    std::ranges::fill(source_, std::byte{1});
    std::thread reader([this, reads] { takeAll(reads); });
    while (!isReady_.load(std::memory_order_acquire)) {
      std::this_thread::yield();
    }
    const auto start = Clock::now();
    for (std::size_t i = 0; i < kSegments; ++i) {
      while (i >= taken_.load(std::memory_order_acquire) + kRingSegments) {
        std::this_thread::yield();
      }
      copy(ring_, i % kRingSegments, source_, i, writes);
      kernels().fence();
      packed_.store(i + 1, std::memory_order_release);
    }
    reader.join();
    return std::max(Clock::now() - start, Duration(1));
  }

 private:
  void takeAll(RowStore reads) {
    useAllCores();
    isReady_.store(true, std::memory_order_release);
    for (std::size_t i = 0; i < kSegments; ++i) {
      while (packed_.load(std::memory_order_acquire) <= i) {
        std::this_thread::yield();
      }
      copy(target_, i, ring_, i % kRingSegments, reads);
      taken_.store(i + 1, std::memory_order_release);
    }
  }

  static void copy(std::span<std::byte> to, std::size_t toIndex, std::span<const std::byte> from, std::size_t fromIndex,
                   RowStore store) {
    kernels().copyRows(to.data() + toIndex * kSegmentBytes, 0, from.data() + fromIndex * kSegmentBytes, 0,
                       kSegmentBytes, 1, store);
  }

  std::span<std::byte> source_;
  std::span<std::byte> target_;
  std::span<std::byte> ring_;
  std::atomic<std::size_t> packed_ = 0;
  std::atomic<std::size_t> taken_ = 0;
  std::atomic<bool> isReady_ = false;
};

}  // namespace

RowStore fastestCachedStore(const HandOverTimes& times) {
  return isMuchLess(times.plain, times.ahead) ? RowStore::kPlain : RowStore::kAhead;
}

bool streamingPays(const HandOverTimes& times) {
  return !isMuchLess(std::min(times.ahead, times.plain), times.streamed);
}

std::optional<HandOverTimes> measureHandOvers() {
  if (std::thread::hardware_concurrency() < 2) {
    return std::nullopt;
  }
  const auto memory = std::make_unique<std::byte[]>(2 * kBytes + kRingBytes);  // written: no trial meets a fresh page
  Ring ring({memory.get(), 2 * kBytes + kRingBytes});
  HandOverTimes times{Duration::max(), Duration::max(), Duration::max()};
  const auto start = Clock::now();
  try {
    for (int round = 0; round < kTrialsOfEach && Clock::now() - start < kMaxTime; ++round) {
      times.ahead = std::min(times.ahead, ring.time(RowStore::kAhead, RowStore::kAhead));
      times.plain = std::min(times.plain, ring.time(RowStore::kPlain, RowStore::kAhead));
      times.streamed = std::min(times.streamed, ring.time(largeStore(), RowStore::kAhead));
    }
  } catch (const std::system_error&) {  // the system gives no thread now
    return std::nullopt;
  }
  if (std::max({times.ahead, times.plain, times.streamed}) > kPlausible) {
    return std::nullopt;
  }
  return times;
}

}  // namespace shardwire::internal
