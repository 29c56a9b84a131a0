// Fd, Mapping and makeMemfd: each owns its descriptor or mapping. First descriptors (closing, release, children of
// fork), then OwnerProcess, then memory files (sealed size, access), and at last mappings (sharing, alignment, errors).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "backend/base/fd.h"
#include "backend/base/mapping.h"
#include "backend/base/memfd.h"
#include "backend/base/owner_process.h"

namespace shardwire::internal {
namespace {

bool isOpen(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}

TEST(Fd, ClosesWhatItOwns) {
  int number = -1;
  {
    Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    number = fd.get();
    ASSERT_TRUE(isOpen(number));
    Fd moved(std::move(fd));
    EXPECT_FALSE(fd.isOpen());  // NOLINT: what a moved-from Fd is
    EXPECT_TRUE(isOpen(number));
    Fd assigned;
    assigned = std::move(moved);
    EXPECT_EQ(assigned.get(), number);
  }
  EXPECT_FALSE(isOpen(number));
}

// In a forked child: what `look` returns, 0..255.
int inChild(const std::function<int()>& look) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(look());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Fd, ThatIsClosedInChildrenIsNotTheirs) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Fd read(ends[0]);
  Fd write(ends[1]);
  write.closeInChildren();
  Fd moved(std::move(write));
  const int number = moved.get();
  EXPECT_EQ(inChild([&] {
              const bool isClosed = ::fcntl(number, F_GETFD) == -1;
              const int other = ::fcntl(read.get(), F_DUPFD, number);  // takes the number
              moved.reset();
              return isClosed && other == number && ::fcntl(number, F_GETFD) >= 0 ? 7 : 8;
            }),
            7);
  EXPECT_GE(::fcntl(number, F_GETFD), 0);
  // A descriptor that was closed is not closed in a child.
  moved.reset();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
  const Fd second(::dup(read.get()));
  EXPECT_EQ(second.get(), number);
  EXPECT_EQ(inChild([&] { return ::fcntl(second.get(), F_GETFD) >= 0 ? 7 : 8; }), 7);
}

TEST(OwnerProcess, KnowsChildrenAndNamesBoth) {
  const OwnerProcess owner;
  EXPECT_TRUE(owner.isHere());
  EXPECT_TRUE(owner.check("it").isOk());
  EXPECT_EQ(inChild([&] {
              const OwnerProcess own;
              const Status status = owner.check("it");
              const auto has = [&](pid_t pid) {
                return status.message().find("process " + std::to_string(pid)) != std::string::npos;
              };
              const bool isRight = !owner.isHere() && own.isHere() && status.code() == StatusCode::kUnsupported &&
                                   has(::getppid()) && has(::getpid());
              return isRight && inChild([&] { return owner.isHere() || own.isHere() ? 8 : 7; }) == 7 ? 7 : 8;
            }),
            7);
}

TEST(Memfd, HasASealedSize) {
  const auto fd = makeMemfd("shardwire-test", 8192);
  ASSERT_TRUE(fd.isOk()) << fd.status().message();
  EXPECT_NE(::ftruncate(fd->get(), 4096), 0);
  EXPECT_NE(::ftruncate(fd->get(), 16384), 0);
  EXPECT_TRUE(checkMemfd(fd->get(), 8192).isOk());
  EXPECT_EQ(checkMemfd(fd->get(), 4096).code(), StatusCode::kMismatch);
}

TEST(Memfd, OthersAreRejected) {
  const Fd unsealed(::memfd_create("shardwire-test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(checkMemfd(unsealed.get(), 4096).code(), StatusCode::kMismatch);
  const Fd device(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(checkMemfd(device.get(), 0).isOk());
  EXPECT_EQ(checkMemfd(-1, 0).code(), StatusCode::kSystem);
}

TEST(Mapping, SharesWhatItMaps) {
  const auto fd = makeMemfd("shardwire-test", 8192);
  ASSERT_TRUE(fd.isOk());
  auto writer = Mapping::shared(fd->get(), 0, 8192, Access::kReadWrite, "a test");
  const auto reader = Mapping::shared(fd->get(), 4096, 4096, Access::kRead, "a test");
  ASSERT_TRUE(writer.isOk() && reader.isOk());
  std::strcpy(reinterpret_cast<char*>(writer->bytes() + 4096), "seen");
  EXPECT_STREQ(reinterpret_cast<const char*>(reader->bytes()), "seen");
}

TEST(Mapping, AlignsItsAddressAndUnmapsAllOfIt) {
  constexpr std::size_t kAlignment = std::size_t{2} << 20;
  const auto fd = makeMemfd("shardwire-test", kAlignment);
  ASSERT_TRUE(fd.isOk());
  for (int i = 0; i < 8; ++i) {
    std::byte* at = nullptr;
    {
      const auto mapping = Mapping::shared(fd->get(), 0, kAlignment, Access::kReadWrite, "a test", kAlignment);
      ASSERT_TRUE(mapping.isOk());
      at = mapping->bytes();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % kAlignment, 0U);
      at[kAlignment - 1] = std::byte{1};
    }
    unsigned char resident = 0;
    EXPECT_NE(::mincore(at, 4096, &resident), 0);  // ENOMEM: nothing is mapped there
    const auto shift =
        ::mmap(nullptr, 4096 * 3, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);  // another start the next time
    ASSERT_NE(shift, MAP_FAILED);
  }
}

TEST(Mapping, ErrorsNameWhatCouldNotBeMapped) {
  const auto mapping = Mapping::shared(-1, 0, 4096, Access::kRead, "the thing", 4096);
  ASSERT_EQ(mapping.status().code(), StatusCode::kSystem);
  EXPECT_NE(mapping.status().message().find("the thing"), std::string::npos);
  EXPECT_NE(mapping.status().message().find("EBADF"), std::string::npos);
}

}  // namespace
}  // namespace shardwire::internal
