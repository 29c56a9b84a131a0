// The machine pauses a reader in the middle of a copy from a peer's memory. The peer gives up meanwhile and has its
// tensor back: the reader may then read any bytes, and these bytes must not pass for a result.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "backend/memory/shared_heap.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/shared_value.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::awaitStopped;
using shardwire::testing::meetOutside;
using shardwire::testing::runRanksAsProcesses;
using shardwire::testing::SharedValue;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kBytes = std::size_t{8} << 20;
// A copy goes in pieces of 4 MiB; here the last one stops half way.
constexpr std::size_t kStopsAt = std::size_t{6} << 20;
constexpr std::size_t kLocked = std::size_t{64} << 10;

struct Shared {
  std::atomic<int> joined{0};
  std::atomic<int> reader{0};
  std::atomic<bool> isPaused{false};
  std::atomic<bool> isOver{false};
};

// Of the reader's process.
std::byte* lockedPages = nullptr;
Shared* sharedByReader = nullptr;

// The copy has reached the locked pages. Stops this process; after a continue signal the copy is still at the same
// place.
void pauseHere(int) {
  sharedByReader->isPaused = true;
  kill(getpid(), SIGSTOP);
  mprotect(lockedPages, kLocked, PROT_READ | PROT_WRITE);
}

using Move = std::function<Result<WorkPtr>(Communicator&, TensorView, CallOptions)>;

void readWithPause(Communicator& group, Shared& shared, const Move& move) {
  void* const output = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(output, MAP_FAILED);
  auto* const bytes = static_cast<std::uint8_t*>(output);
  std::memset(bytes, 0, kBytes);
  sharedByReader = &shared;
  lockedPages = static_cast<std::byte*>(output) + kStopsAt;
  ASSERT_EQ(mprotect(lockedPages, kLocked, PROT_NONE), 0);
  struct sigaction pause = {};
  pause.sa_handler = pauseHere;
  ASSERT_EQ(sigaction(SIGSEGV, &pause, nullptr), 0);
  shared.reader = getpid();
  meetOutside(shared.joined, 2);
  auto work = move(group, TensorView::contiguous(bytes, DType::kUInt8, {kBytes}), {});
  const Status status = work.isOk() ? (*work)->wait() : work.status();
  EXPECT_FALSE(status.isOk()) << "success with "
                              << kBytes - static_cast<std::size_t>(std::count(bytes, bytes + kBytes, 1))
                              << " wrong bytes";
  EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();  // the owner's reason, passed on
  EXPECT_NE(status.message().find("rank 0 gave up"), std::string::npos) << status.message();
  shared.isOver = true;
  munmap(output, kBytes);
}

void ownAndGiveUp(Communicator& group, Shared& shared, const Move& move) {
  const auto memory = allocateShared(kBytes);
  ASSERT_TRUE(memory.isOk()) << memory.status().message();
  std::memset(memory->get(), 1, kBytes);
  meetOutside(shared.joined, 2);
  auto work = move(group, TensorView::contiguous(static_cast<std::uint8_t*>(memory->get()), DType::kUInt8, {kBytes}),
                   {.timeout = seconds(5)});
  ASSERT_TRUE(work.isOk());
  const auto giveUp = Clock::now() + seconds(20);
  while (!shared.isPaused && Clock::now() < giveUp) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_TRUE(shared.isPaused) << "the reader never came to the locked pages";
  awaitStopped(shared.reader);
  EXPECT_EQ((*work)->wait().code(), StatusCode::kTimeout);
  std::memset(memory->get(), 2, kBytes);
  kill(shared.reader, SIGCONT);
  while (!shared.isOver && Clock::now() < giveUp) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void expectNoSuccess(const Move& move) {
  Options options = *Options::fromEnvironment();
  if (!options.transports.empty()) {
    GTEST_SKIP() << "only shared memory is read by the peer itself";
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes SIGSEGV for itself";
#endif
  options.timeout = seconds(30);
  MemoryStore store;
  SharedValue<Shared> shared;
  runRanksAsProcesses(2, [&](Rank rank) {
    auto group = Communicator::create(store, rank, 2, options, "job");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    if (rank == 1) {
      readWithPause(**group, *shared, move);
    } else {
      ownAndGiveUp(**group, *shared, move);
    }
  });
}

TEST(PausedReader, OfABroadcastReportsNoSuccessAfterTheOwnerGaveUp) {
  expectNoSuccess([](Communicator& group, TensorView tensor, CallOptions call) {
    return group.broadcast(tensor, 0, std::move(call));
  });
}

TEST(PausedReader, OfAMessageReportsNoSuccessAfterTheOwnerGaveUp) {
  expectNoSuccess([](Communicator& group, TensorView tensor, CallOptions call) {
    return group.rank() == 0 ? group.send(tensor, 1, 0, std::move(call)) : group.recv(tensor, 0, 0, std::move(call));
  });
}

}  // namespace
}  // namespace shardwire::internal
