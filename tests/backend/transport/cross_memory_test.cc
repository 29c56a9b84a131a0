#include "backend/transport/shm/cross_memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <vector>

namespace shardwire::internal {
namespace {

// A peer killed in the middle of a copy may lose its memory before the liveness mark reports the death: a reader then
// names the dead process.
TEST(CrossMemory, AProcessThatIsGoneIsNamedAsDead) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(0);
  }
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);  // the pid is not reused
  std::array<std::byte, 64> bytes{};
  const MemoryRun run{bytes.data(), reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size()};
  const Status read = readCrossMemory(child, {&run, 1}, "rank 3 (pid 7 on host a)");
  if (read.code() == StatusCode::kSystem && read.message().find("ENOSYS") != std::string::npos) {
    ::waitpid(child, nullptr, 0);
    GTEST_SKIP() << read.message();
  }
  EXPECT_EQ(read.code(), StatusCode::kPeerFailed) << read.message();
  EXPECT_EQ(read.message().find("rank 3 (pid 7 on host a) died (reading 64 bytes"), 0) << read.message();
  ::waitpid(child, nullptr, 0);
}

// A child has the parent's memory at the same addresses.
TEST(CrossMemory, APeerIsKnownByItsPattern) {
  constexpr std::uint64_t kSecret = 0x0123456789abcdef;
  std::vector<std::byte> pattern(kProbeBytes);
  fillProbe(pattern, kSecret);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto remote = reinterpret_cast<std::uint64_t>(pattern.data());
  const auto speed = probeCrossMemory(child, remote, kSecret, "rank 3");
  const auto again = probeCrossMemory(child, remote, kSecret, "rank 3");
  const auto foreign = probeCrossMemory(child, remote, kSecret + 1, "rank 3");
  const auto nowhere = probeCrossMemory(child, 8, kSecret, "rank 3");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (!speed.isOk() && speed.status().code() == StatusCode::kSystem) {
    GTEST_SKIP() << speed.status().message();
  }
  ASSERT_TRUE(speed.isOk()) << speed.status().message();
  EXPECT_GT(speed->readGBps, 0);
  EXPECT_GT(speed->copyGBps, 0);
  EXPECT_EQ(again.value().readGBps, speed->readGBps);  // not measured again
  EXPECT_EQ(foreign.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(foreign.status().message(), fmt::format("pid {} is not rank 3 (another pid namespace)", child));
  EXPECT_FALSE(nowhere.isOk());
}

}  // namespace
}  // namespace shardwire::internal
