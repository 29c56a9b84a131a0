// Fetches. First the bytes of a request, then the refusals of an owner and unexpected bytes, then a fetch of many runs
// as several requests, then the limits of runs and of one turn, and at last a run above 2 GiB.
#include "backend/transport/tcp/fetch_stream.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "backend/base/memfd.h"
#include "backend/base/wire.h"
#include "backend/fabric/link_message.h"
#include "tests/backend/transport/tcp/tcp_pair.h"
#include "tests/support/hex.h"

namespace shardwire::testing {
namespace {

using internal::FetchCount;
using internal::FetchStream;
using internal::MemoryRun;

struct Streams {
  Streams() : Streams(makeTcpPair()) {}
  explicit Streams(std::pair<internal::Fd, internal::Fd> sockets)
      : owner(std::move(sockets.first)), fetcher(std::move(sockets.second)) {}

  FetchStream owner;
  FetchStream fetcher;
};

std::string request(std::uint32_t space, std::initializer_list<std::pair<std::uint64_t, std::uint64_t>> runs) {
  internal::ByteWriter writer;
  writer.u32(space);
  writer.u32(static_cast<std::uint32_t>(runs.size()));
  for (const auto& [address, bytes] : runs) {
    writer.u64(address);
    writer.u64(bytes);
  }
  return writer.bytes();
}

TEST(FetchStream, RequestBytesAreThese) {
  Streams streams;
  std::byte local[64];
  FetchCount count;
  std::vector<std::string> requests;
  // The first two touch at the owner.
  const MemoryRun runs[] = {{local, 0x1000, 16}, {local + 32, 0x1010, 8}, {local + 48, 0x2000, 4}};
  ASSERT_TRUE(streams.fetcher.ask(5, runs, &count, &requests));
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(toHex(requests[0]),
            "05000000"
            "02000000"
            "0010000000000000"
            "1800000000000000"
            "0020000000000000"
            "0400000000000000");
  EXPECT_EQ(count.pending, 1U);
}

TEST(FetchStream, AnOwnerGivesWhatItExposedAndNothingElse) {
  Streams streams;
  std::vector<std::byte> memory(4096);
  const auto base = reinterpret_cast<std::uint64_t>(memory.data());
  const auto address = streams.owner.expose(memory.data() + 100, 1000);
  const std::uint64_t first = base + 100;
  ASSERT_EQ(address.value, first);
  const std::string good = request(address.space, {{first, 1000}, {first + 999, 1}});
  EXPECT_TRUE(streams.owner.serve(good).isOk());
  const std::string bad[] = {request(address.space, {{first - 1, 2}}),
                             request(address.space, {{first, 1001}}),
                             request(address.space, {{first + 1000, 1}}),
                             request(address.space, {{first + 1, ~std::uint64_t{0}}}),
                             request(address.space, {{~std::uint64_t{0}, 2}}),
                             request(address.space, {{first, 0}}),
                             request(address.space, {{first, 8}, {first - 8, 8}}),
                             request(address.space + 1, {{first, 8}}),
                             request(0, {{first, 8}}),
                             good.substr(0, good.size() - 1),
                             good + "x",
                             good.substr(0, 8),
                             ""};
  for (const std::string& each : bad) {
    EXPECT_EQ(streams.owner.serve(each).code(), StatusCode::kMismatch) << toHex(each);
  }
  EXPECT_FALSE(streams.owner.conceal(address.space));  // bytes of the good request were not sent yet
  EXPECT_EQ(streams.owner.serve(good).code(), StatusCode::kMismatch);
}

TEST(FetchStream, BytesThatNobodyAskedForAreAnError) {
  Streams streams;
  ASSERT_EQ(*internal::sendSome(streams.owner.socket(), "x"), 1U);
  ASSERT_TRUE(internal::WaitLimit(soon()).waitFor(streams.fetcher.socket(), POLLIN, "waiting").isOk());
  bool moved = false;
  EXPECT_EQ(streams.fetcher.receive(&moved).code(), StatusCode::kMismatch);
}

TEST(FetchStream, AFetchOfManyRunsIsSeveralRequests) {
  constexpr std::size_t kNumRuns = 70000;
  Streams streams;
  std::vector<std::byte> from(kNumRuns * 16);
  std::vector<std::byte> to(kNumRuns);
  for (std::size_t i = 0; i < kNumRuns; ++i) {
    from[i * 16] = static_cast<std::byte>(i * 7);
  }
  const auto address = streams.owner.expose(from.data(), from.size());
  std::vector<MemoryRun> runs;
  for (std::size_t i = 0; i < kNumRuns; ++i) {
    runs.push_back({to.data() + i, address.value + i * 16, 1});
  }
  FetchCount count;
  std::vector<std::string> requests;
  ASSERT_TRUE(streams.fetcher.ask(address.space, runs, &count, &requests));
  ASSERT_EQ(requests.size(), 2U);
  for (const std::string& each : requests) {
    ASSERT_TRUE(streams.owner.serve(each).isOk());
  }
  bool moved = false;
  for (const auto start = Clock::now(); count.pending > 0 && Clock::now() - start < std::chrono::seconds(20);) {
    ASSERT_TRUE(streams.owner.send(&moved).isOk());
    ASSERT_TRUE(streams.fetcher.receive(&moved).isOk());
  }
  ASSERT_EQ(count.pending, 0U);
  for (std::size_t i = 0; i < kNumRuns; ++i) {
    ASSERT_EQ(to[i], static_cast<std::byte>(i * 7)) << i;
  }
}

// The owner's limit is twice the fetcher's.
TEST(FetchStream, RunsUnderWayAreLimitedOnBothEnds) {
  constexpr std::size_t kMost = FetchStream::kMaxAskedRuns;
  Streams streams;
  std::vector<std::byte> memory(kMost);
  std::vector<std::byte> to(kMost);
  const auto address = streams.owner.expose(memory.data(), memory.size());
  std::vector<MemoryRun> runs;
  for (std::size_t i = 0; i < kMost; ++i) {
    runs.push_back({to.data() + i, address.value + i, 1});  // adjacent: counted one by one, and sent as one
  }
  const auto some = std::span(runs).first(2);
  FetchCount count;
  std::vector<std::string> requests;
  const auto ask = [&](std::span<const MemoryRun> which) {
    return streams.fetcher.ask(address.space, which, &count, &requests);
  };
  ASSERT_TRUE(ask(some));
  EXPECT_FALSE(ask(std::span(runs).first(kMost - 1)));
  ASSERT_TRUE(ask(std::span(runs).first(kMost - 2)));
  EXPECT_FALSE(ask(some));
  EXPECT_EQ(count.pending, 2U);
  for (const std::string& each : requests) {
    ASSERT_TRUE(streams.owner.serve(each).isOk());
  }
  bool moved = false;
  for (const auto start = Clock::now(); count.pending > 0 && Clock::now() - start < std::chrono::seconds(20);) {
    ASSERT_TRUE(streams.owner.send(&moved).isOk());
    ASSERT_TRUE(streams.fetcher.receive(&moved).isOk());
  }
  ASSERT_EQ(count.pending, 0U);
  EXPECT_TRUE(ask(runs));  // nothing else is under way any more

  internal::ByteWriter many;
  many.u32(address.space);
  many.u32(1 << 16);
  for (std::uint64_t i = 0; i < 1 << 16; ++i) {
    many.u64(address.value + 2 * i);
    many.u64(1);
  }
  Status refused;
  std::size_t numServed = 0;
  while ((refused = streams.owner.serve(many.bytes())).isOk() && numServed < 2 * kMost) {
    numServed += 1 << 16;
  }
  EXPECT_EQ(numServed, 2 * kMost);
  EXPECT_EQ(refused.code(), StatusCode::kMismatch);
  EXPECT_NE(refused.message().find("a request for 65536 runs beside"), std::string::npos) << refused.message();
}

// Address space of any length over a few pages, each seen again and again.
class Endless {
 public:
  Endless(std::size_t size, std::size_t period) : size_(size) {
    const auto file = internal::makeMemfd("shardwire-test", period);
    EXPECT_TRUE(file.isOk());
    void* whole = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(whole, MAP_FAILED);
    bytes_ = static_cast<std::byte*>(whole);
    for (std::size_t at = 0; at < size; at += period) {
      EXPECT_NE(::mmap(bytes_ + at, period, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file->get(), 0),
                MAP_FAILED);
    }
  }
  ~Endless() { ::munmap(bytes_, size_); }
  Endless(const Endless&) = delete;
  Endless& operator=(const Endless&) = delete;
  std::byte* bytes() const { return bytes_; }

 private:
  std::size_t size_;
  std::byte* bytes_;
};

// A single system call continues for as long as the other end keeps up; frames of the same peer would wait so long.
TEST(FetchStream, ATurnIsBoundedHoweverFastTheOtherEndIs) {
  constexpr std::size_t kSize = std::size_t{64} << 20;
  for (const bool isSender : {true, false}) {
    SCOPED_TRACE(isSender ? "send" : "receive");
    Streams streams;
    const std::vector<std::byte> from(kSize, std::byte{1});
    std::vector<std::byte> to(kSize);
    const auto address = streams.owner.expose(from.data(), kSize);
    const MemoryRun all{to.data(), address.value, kSize};
    FetchCount count;
    std::vector<std::string> requests;
    ASSERT_TRUE(streams.fetcher.ask(address.space, {&all, 1}, &count, &requests));
    ASSERT_TRUE(streams.owner.serve(requests.at(0)).isOk());
    FetchStream& fast = isSender ? streams.fetcher : streams.owner;
    FetchStream& one = isSender ? streams.owner : streams.fetcher;
    std::thread other([&] {
      bool moved = false;
      Status status;
      do {
        status = isSender ? fast.receive(&moved) : fast.send(&moved);
      } while (status.isOk() && (isSender ? !fast.isEnded() : fast.isBlocked()));
    });
    ASSERT_TRUE(internal::WaitLimit(soon()).waitFor(one.socket(), isSender ? POLLOUT : POLLIN, "waiting").isOk());
    bool moved = false;
    EXPECT_TRUE((isSender ? one.send(&moved) : one.receive(&moved)).isOk());
    // Closes the socket: a mere shutdown would leave an owner waiting for ever if the peer's window is full.
    static_cast<void>(FetchStream(std::move(one)));
    other.join();
    EXPECT_TRUE(moved);
    EXPECT_EQ(count.pending, 1U);
    EXPECT_EQ(to[FetchStream::kMaxTurnBytes], std::byte{0});
  }
}

#if !defined(__SANITIZE_THREAD__)  // watching these bytes takes 47 s
TEST(FetchStream, ARunMayBeLongerThanTwoGigabytes) {
  constexpr std::size_t kPeriod = std::size_t{16} << 20;
  constexpr std::size_t kSize = (std::size_t{2} << 30) + kPeriod;
  const Endless from(kSize, kPeriod);
  const Endless to(kSize, kPeriod);
  Streams streams;
  from.bytes()[0] = std::byte{1};
  from.bytes()[kPeriod - 1] = std::byte{2};
  const auto address = streams.owner.expose(from.bytes(), kSize);
  const MemoryRun all{to.bytes(), address.value, kSize};
  FetchCount count;
  std::vector<std::string> requests;
  ASSERT_TRUE(streams.fetcher.ask(address.space, {&all, 1}, &count, &requests));
  ASSERT_TRUE(streams.owner.serve(requests.at(0)).isOk());
  bool moved = false;
  for (const auto start = Clock::now(); count.pending > 0 && Clock::now() - start < std::chrono::seconds(50);) {
    ASSERT_TRUE(streams.owner.send(&moved).isOk());
    ASSERT_TRUE(streams.fetcher.receive(&moved).isOk());
  }
  EXPECT_EQ(count.pending, 0U);
  EXPECT_EQ(to.bytes()[0], std::byte{1});
  EXPECT_EQ(to.bytes()[kSize - 1], std::byte{2});
}
#endif

}  // namespace
}  // namespace shardwire::testing
