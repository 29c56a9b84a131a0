#include "backend/memory/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "backend/base/mapping.h"
#include "backend/base/memfd.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Kilobytes of shared memory mapped by huge pages in this process.
std::uint64_t hugeKilobytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    if (word == "ShmemPmdMapped:") {
      std::uint64_t kilobytes = 0;
      rollup >> kilobytes;
      return kilobytes;
    }
  }
  return 0;
}

TEST(HugePages, BackNewMemoryWithZeroes) {
  const auto fd = makeMemfd("shardwire-test", 4 * kHugePage);
  ASSERT_TRUE(fd.isOk());
  const auto mapping = Mapping::shared(fd->get(), 0, 4 * kHugePage, Access::kReadWrite, "a test", kHugePage);
  ASSERT_TRUE(mapping.isOk());
  const std::uint64_t before = hugeKilobytes();
  HugePages pages(false);
  pages.back(mapping->bytes() + kHugePage, 2 * kHugePage);
  for (std::size_t at = 0; at < 4 * kHugePage; at += 512) {
    ASSERT_EQ(mapping->bytes()[at], std::byte{0});
  }
  const std::uint64_t backed = hugeKilobytes() - before;
  if (backed == 0) {
    GTEST_SKIP() << "this kernel gives no huge pages to shared memory, or has none free";
  }
  EXPECT_LE(backed, 2 * kHugePage / 1024);
}

TEST(HugePages, DoNothingWhereTheyComeOnDemand) {
  const auto fd = makeMemfd("shardwire-test", kHugePage);
  ASSERT_TRUE(fd.isOk());
  const auto mapping = Mapping::shared(fd->get(), 0, kHugePage, Access::kReadWrite, "a test", kHugePage);
  ASSERT_TRUE(mapping.isOk());
  HugePages(true).back(mapping->bytes(), kHugePage);
  struct stat status {};
  ASSERT_EQ(::fstat(fd->get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
}

TEST(HugePages, SurviveMemoryThatCannotHaveThem) {
  void* memory = ::mmap(nullptr, 2 * kHugePage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  HugePages pages(false);
  auto* misaligned = static_cast<std::byte*>(memory) + 1;  // not even on a page
  pages.back(misaligned, kHugePage);
  EXPECT_EQ(*misaligned, std::byte{0});
  ::munmap(memory, 2 * kHugePage);
}

}  // namespace
}  // namespace shardwire::internal
