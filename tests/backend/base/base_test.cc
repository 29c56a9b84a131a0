// The small parts of backend/base, one after the other: errno text, the log (levels, lines, socket, environment),
// random ids, wire fields, futex across processes, and mutex.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <new>
#include <string_view>
#include <thread>

#include "backend/base/futex.h"
#include "backend/base/log.h"
#include "backend/base/mutex.h"
#include "backend/base/random_id.h"
#include "backend/base/system_error.h"
#include "backend/base/wire.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::internal {
namespace {

TEST(SystemError, SpellsErrnoOut) {
  EXPECT_EQ(errnoText(EPERM), "Operation not permitted (EPERM)");
  EXPECT_EQ(errnoText(99999), "unknown error 99999");
  EXPECT_EQ(systemError("opening the file", ENOENT),
            Status(StatusCode::kSystem, "opening the file: No such file or directory (ENOENT)"));
}

TEST(Log, KnowsItsLevels) {
  EXPECT_EQ(parseLogLevel("error"), LogLevel::kError);
  EXPECT_EQ(parseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(parseLogLevel("INFO"), std::nullopt);
  EXPECT_EQ(parseLogLevel(""), std::nullopt);
}

TEST(Log, WritesOneLineWhenTheLevelIsOn) {
  const LogLevel before = logLevel();
  setLogLevel(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  logInfo("rank {} says\n{}", 3, "hello");
  logDebug("not {}", "this");
  const std::string text = ::testing::internal::GetCapturedStderr();
  setLogLevel(before);
  EXPECT_EQ(text, fmt::format("shardwire info [{}]: rank 3 says hello\n", ::getpid()));
}

TEST(Log, SendsLinesToASocketAndWaitsForNobody) {
  const LogLevel before = logLevel();
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  sendLogTo(pair[0], LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  logInfo("rank {} says {}", 3, "hello");
  logDebug("not this");
  logError("the last line");
  std::array<char, 200> got{};
  const ssize_t size = ::recv(pair[1], got.data(), got.size(), MSG_DONTWAIT);
  ASSERT_GT(size, 0);
  EXPECT_EQ(std::string_view(got.data(), static_cast<std::size_t>(size)),
            fmt::format("info {} rank 3 says hello", ::getpid()));
  EXPECT_LT(::recv(pair[1], got.data(), got.size(), MSG_DONTWAIT), 0);
  for (int i = 0; i < 10000; ++i) {  // no process reads, and lines without room go to stderr
    logInfo("line {}", i);
  }
  sendLogTo(-1, before);
  logWarn("to stderr again");
  const std::string errors = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(errors.find("]: the last line\n"), std::string::npos);
  EXPECT_NE(errors.find("]: line 9999\n"), std::string::npos);
  EXPECT_NE(errors.find("]: to stderr again\n"), std::string::npos);
  EXPECT_EQ(errors.find("hello"), std::string::npos);
  ::close(pair[0]);
  ::close(pair[1]);
}

TEST(Log, ReadsItsLevelFromTheEnvironment) {
  setLogLevel(LogLevel::kWarn);
  for (const auto& [text, level] : {std::pair("debug", LogLevel::kDebug), std::pair("error", LogLevel::kError),
                                    std::pair("", LogLevel::kWarn), std::pair("loud", LogLevel::kWarn)}) {
    ::setenv("SHARDWIRE_LOG", text, 1);
    ::testing::internal::CaptureStderr();
    rereadLogLevel();
    EXPECT_EQ(logLevel(), level) << text;
    const std::string complaint = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(complaint.find("SHARDWIRE_LOG=loud") != std::string::npos, std::string(text) == "loud") << complaint;
  }
  ::unsetenv("SHARDWIRE_LOG");
  rereadLogLevel();
}

TEST(RandomId, DiffersEachTimeAndPerProcess) {
  const auto a = makeRandomId();
  const auto b = makeRandomId();
  ASSERT_TRUE(a.isOk() && b.isOk());
  EXPECT_NE(*a, *b);
  EXPECT_FALSE(a->isZero());
  EXPECT_EQ(toString(RandomId{{1, 0xabc}}), "00000000000000010000000000000abc");
  const auto process = processId();
  ASSERT_TRUE(process.isOk());
  EXPECT_EQ(*processId(), *process);
  testing::runRanksAsProcesses(1, [&](Rank) { EXPECT_NE(*processId(), *process); });
  EXPECT_EQ(*processId(), *process);
}

TEST(Wire, CarriesAnIdAsTwoWords) {
  ByteWriter writer;
  idField(writer, RandomId{{1, 2}});
  EXPECT_EQ(writer.bytes(), std::string("\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 16));
  ByteReader reader(writer.bytes());
  EXPECT_EQ(readId(reader), (RandomId{{1, 2}}));
  EXPECT_TRUE(reader.isDone());
}

TEST(Futex, WakesAcrossProcesses) {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* words = new (memory) std::atomic<std::uint32_t>[2] {};
  testing::runRanksAsProcesses(
      2,
      [&](Rank rank) {
        const auto me = static_cast<std::size_t>(rank);
        for (std::uint32_t round = 1; round <= 2000; ++round) {
          words[me].store(round);
          futexWakeAll(words[me]);
          for (std::uint32_t seen = 0; (seen = words[1 - me].load()) < round;) {
            futexWait(words[1 - me], seen, std::chrono::seconds(20));
          }
        }
      },
      std::chrono::seconds(10));
  ::munmap(memory, 4096);
}

TEST(Futex, ReturnsAtItsTimeoutOrWhenTheWordDiffers) {
  const std::atomic<std::uint32_t> word{5};
  const auto start = Clock::now();
  futexWait(word, 4, std::chrono::seconds(10));
  futexWait(word, 5, Duration(0));
  futexWait(word, 5, Duration(-1));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  const auto again = Clock::now();
  futexWait(word, 5, std::chrono::milliseconds(20));
  EXPECT_LT(Clock::now() - again, std::chrono::seconds(5));
}

TEST(Mutex, ExcludesAndWakes) {
  Mutex mutex;
  ConditionVariable changed;
  int turn = 0;
  testing::runRanksAsThreads(3, [&](Rank rank) {
    for (int round = 0; round < 500; ++round) {
      const MutexLock lock(mutex);
      while (turn % 3 != rank) {
        changed.wait(mutex);
      }
      ++turn;
      changed.notifyAll();
    }
  });
  EXPECT_EQ(turn, 1500);
  ASSERT_TRUE(mutex.tryLock());
  std::thread([&] {
    if (mutex.tryLock()) {
      ADD_FAILURE() << "locked twice";
      mutex.unlock();
    }
  }).join();
  const auto start = Clock::now();
  changed.waitUntil(mutex, start + std::chrono::milliseconds(10));
  mutex.unlock();
}

}  // namespace
}  // namespace shardwire::internal
