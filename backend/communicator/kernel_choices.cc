// A process reads the times of its kernels from the host's file, or measures and writes the file. A trial copies one
// row by one way of storing, with source and destination outside of the caches. Each way is tried at several distances
// of destination and source, and counts with its slowest distance, so a way that aliases at one distance loses. The
// rule (fastestLargeStore) turns the times into the choice, so the file holds facts and outlives a better rule. The
// times of staged payloads (hand_over.h) have another file, written only after a useful measurement. Among processes
// with the same start, one process measures and the others wait for the file.
#include "backend/communicator/kernel_choices.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/base/evict.h"
#include "backend/base/fd.h"
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

struct TimesInUse {
  LargeStoreTimes large;
  std::optional<HandOverTimes> handOvers;
};
// Null: not chosen yet. There is no lock, since a child of fork() could find the lock taken for ever.
std::atomic<const TimesInUse*> timesInUse = nullptr;

using Times = std::array<Duration::rep, 3>;

std::optional<Times> parseTimes(const std::string& text) {
  const char* const last = text.data() + text.size();
  const char* at = text.data();
  Times times{};
  for (Duration::rep& time : times) {
    const auto [end, error] = std::from_chars(at, last, time);
    if (error != std::errc() || time <= 0 || end == last) {
      return std::nullopt;
    }
    at = end + 1;  // one space between two times, and a newline behind the last time
  }
  return at == last ? std::optional(times) : std::nullopt;
}

std::string fileName(std::string_view what) {
  return fmt::format("{}-1-{}", what, kernels().name);
}

// As LargeStoreTimes or HandOverTimes.
template <typename T>
std::optional<T> readTimes(const std::string& folder, std::string_view what) {
  const std::optional<std::string> kept = readKept(fmt::format("{}/{}", folder, fileName(what)));
  const std::optional<Times> times = kept.has_value() ? parseTimes(*kept) : std::nullopt;
  return times.has_value() ? std::optional(T{Duration((*times)[0]), Duration((*times)[1]), Duration((*times)[2])})
                           : std::nullopt;
}

void keepTimes(const std::string& folder, std::string_view what, const Times& times) {
  const Status written = writeKept(folder, fileName(what), fmt::format("{}\n", fmt::join(times, " ")));
  if (!written.isOk()) {
    logInfo("each process of this host measures its {} anew: {}", what, written.message());
  }
}

// Lets one process of this user measure at a time, since two measurements at once would disturb each other. A process
// stopped in a measurement holds up the others for kMaxWait only.
class MeasuringTurn {
 public:
  explicit MeasuringTurn(const std::string& folder) {
    std::error_code ignored;  // a missing folder is reported when the times are kept
    std::filesystem::create_directories(folder, ignored);
    folder_ = Fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const Deadline deadline = deadlineAfter(kMaxWait);
    while (::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && Clock::now() < deadline) {
      waited_ = true;
      std::this_thread::sleep_for(kNap);
    }
  }
  bool waited() const { return waited_; }

 private:
  static constexpr Duration kMaxWait = std::chrono::milliseconds(200);
  static constexpr Duration kNap = std::chrono::milliseconds(1);

  Fd folder_;
  bool waited_ = false;
};

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

double rateOf(std::size_t bytes, Duration time) {
  return static_cast<double>(bytes) / static_cast<double>(time.count());  // bytes per nanosecond are GB/s
}

constexpr std::array<std::string_view, kNumIsas> kIsaNames = {"baseline", "avx2", "avx512", "neon"};

std::string_view wantedIsa() {
  const char* wanted = ::getenv("SHARDWIRE_ISA");
  return wanted == nullptr ? "" : wanted;
}

std::string whyThisIsa() {
  const std::string_view wanted = wantedIsa();
  if (wanted.empty()) {
    return "the widest of this CPU";
  }
  return wanted == kernels().name ? "by SHARDWIRE_ISA"
                                  : fmt::format("the widest of this CPU: SHARDWIRE_ISA={} is none that it has", wanted);
}

}  // namespace

Status checkIsaVariable() {
  const std::string_view wanted = wantedIsa();
  return wanted.empty() || std::ranges::find(kIsaNames, wanted) != kIsaNames.end()
             ? Status::ok()
             : Status(StatusCode::kInvalidArgument,
                      fmt::format("SHARDWIRE_ISA={} is not one of {}", wanted, fmt::join(kIsaNames, ", ")));
}

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
  constexpr std::string_view kWhat = "large-stores";
  if (const auto kept = readTimes<LargeStoreTimes>(folder, kWhat)) {
    return *kept;
  }
  const MeasuringTurn turn(folder);
  if (const auto kept = turn.waited() ? readTimes<LargeStoreTimes>(folder, kWhat) : std::nullopt) {
    return *kept;
  }
  const LargeStoreTimes times = measureLargeStores();
  keepTimes(folder, kWhat, {times.ahead.count(), times.stream.count(), times.pair.count()});
  return times;
}

std::optional<HandOverTimes> handOverTimes(const std::string& folder) {
  constexpr std::string_view kWhat = "hand-overs";
  if (const auto kept = readTimes<HandOverTimes>(folder, kWhat)) {
    return kept;
  }
  const MeasuringTurn turn(folder);
  if (turn.waited()) {  // the process before has just measured, or could not
    return readTimes<HandOverTimes>(folder, kWhat);
  }
  const std::optional<HandOverTimes> times = measureHandOvers();
  if (times.has_value()) {
    keepTimes(folder, kWhat, {times->ahead.count(), times->plain.count(), times->streamed.count()});
  }
  return times;
}

void chooseStores() {
  if (timesInUse.load(std::memory_order_acquire) != nullptr) {
    return;
  }
  std::unique_ptr<const TimesInUse> times(
      new TimesInUse{largeStoreTimes(hostChoicesFolder()), handOverTimes(hostChoicesFolder())});
  useLargeStore(fastestLargeStore(times->large));
  if (times->handOvers.has_value()) {
    useCachedStore(fastestCachedStore(*times->handOvers));
    useStreamsForStaged(streamingPays(*times->handOvers));
  }
  const TimesInUse* none = nullptr;
  if (timesInUse.compare_exchange_strong(none, times.get(), std::memory_order_release)) {
    static_cast<void>(times.release());  // for the life of the process
  }
}

std::string describeKernels() {
  const TimesInUse* const times = timesInUse.load(std::memory_order_acquire);
  const std::string large =
      times == nullptr ? "not measured"
                       : fmt::format("measured on this host, GB/s: ordinary {:.1f}, one stream {:.1f}, two {:.1f}",
                                     rateOf(kTrialBytes, times->large.ahead), rateOf(kTrialBytes, times->large.stream),
                                     rateOf(kTrialBytes, times->large.pair));
  const std::string handed =
      times == nullptr || !times->handOvers.has_value()
          ? "not measured"
          : fmt::format("measured on this host, GB/s: fetching ahead {:.1f}, plain {:.1f}, past the caches {:.1f}",
                        rateOf(kHandOverBytes, times->handOvers->ahead),
                        rateOf(kHandOverBytes, times->handOvers->plain),
                        rateOf(kHandOverBytes, times->handOvers->streamed));
  return fmt::format("kernels: {} ({}); large moves: {} ({}); between cores: {}, long payloads {} ({})\n",
                     kernels().name, whyThisIsa(), nameOf(largeStore()), large,
                     cachedStore() == RowStore::kPlain ? "plain" : "fetching ahead",
                     streamsStaged() ? "past the caches" : "through the caches", handed);
}

}  // namespace shardwire::internal
