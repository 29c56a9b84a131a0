// The shared heap of the process. First blocks: alignment, offsets, wrong frees, and random allocations by one thread
// and by many. Then the pages of freed blocks, children of fork(), limited address space, pages given back by another
// thread, a full heap, and at last limits of files.
#include "backend/memory/shared_heap.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/fork_ranks.h"
#include "tests/support/shared_value.h"

namespace shardwire::internal {
namespace {

using testing::runRanksAsProcesses;
using testing::SharedValue;

SharedHeap& heap() {
  static SharedHeap* made = *SharedHeap::instance();
  return *made;
}

std::byte* allocate(std::size_t bytes) {
  auto block = heap().allocate(bytes);
  EXPECT_TRUE(block.isOk()) << block.status().message();
  return static_cast<std::byte*>(*block);
}

// Bytes of memory in use by the heap, as the kernel counts.
std::uint64_t residentBytes(const SharedHeap& heap) {
  struct stat status {};
  EXPECT_EQ(::fstat(heap.fd(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST(SharedHeap, IsOneForTheProcess) {
  const auto first = SharedHeap::instance();
  ASSERT_TRUE(first.isOk()) << first.status().message();
  EXPECT_EQ(*SharedHeap::instance(), *first);
  EXPECT_EQ(SharedHeap::instanceIfMade(), *first);
  EXPECT_EQ(heap().reservedBytes() % (std::uint64_t{2} << 20), 0U);
}

TEST(SharedHeap, AlignsBlocksAndReturnsTheOffset) {
  const std::uint64_t before = heap().usedBytes();
  std::vector<std::byte*> blocks;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{65}, std::size_t{5000},
                                  std::size_t{65536}, std::size_t{65537}, std::size_t{1} << 20,
                                  (std::size_t{2} << 20) - 1, std::size_t{2} << 20, (std::size_t{5} << 20) + 3}) {
    std::byte* block = allocate(bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    EXPECT_EQ(address % (bytes >= (std::size_t{2} << 20) ? std::size_t{2} << 20 : 64), 0U) << bytes;
    const auto offset = heap().offsetOf(block, bytes);
    ASSERT_TRUE(offset) << bytes;
    // Bytes written here are in the descriptor at the offset of the block: peers read there.
    if (bytes > 0) {
      std::memset(block, 0x5a, bytes);
      unsigned char seen = 0;
      ASSERT_EQ(::pread(heap().fd(), &seen, 1, static_cast<off_t>(*offset + bytes - 1)), 1);
      EXPECT_EQ(seen, 0x5a);
    }
    for (const std::byte* other : blocks) {
      EXPECT_NE(other, block);
    }
    blocks.push_back(block);
  }
  EXPECT_GT(heap().usedBytes(), before);
  for (std::byte* block : blocks) {
    heap().free(block);
  }
  EXPECT_EQ(heap().usedBytes(), before);
}

TEST(SharedHeap, OffsetsAreOfWholeRangesInTheHeapOnly) {
  int local = 0;
  EXPECT_EQ(heap().offsetOf(&local, sizeof(local)), std::nullopt);
  EXPECT_EQ(heap().offsetOf(nullptr, 0), std::nullopt);
  std::byte* block = allocate(100);
  const auto offset = heap().offsetOf(block, 100);
  ASSERT_TRUE(offset);
  EXPECT_EQ(heap().offsetOf(block + 10, 20), *offset + 10);
  EXPECT_EQ(heap().offsetOf(block, heap().reservedBytes() - *offset), *offset);
  EXPECT_EQ(heap().offsetOf(block, heap().reservedBytes() - *offset + 1), std::nullopt);
  EXPECT_EQ(heap().offsetOf(block, ~std::size_t{0}), std::nullopt);
  heap().free(block);
}

TEST(SharedHeap, CatchesDoubleFreeAndForeignPointers) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{100000}, std::size_t{4} << 20}) {
    std::byte* block = allocate(bytes);
    EXPECT_THROW(heap().free(block + 64), std::logic_error);
    heap().free(block);
    EXPECT_THROW(heap().free(block), std::logic_error);
  }
  int local = 0;
  EXPECT_THROW(heap().free(&local), std::logic_error);
}

TEST(SharedHeap, RefusesMoreThanItHas) {
  for (const std::size_t bytes : {std::size_t{heap().reservedBytes()} + 1, ~std::size_t{0}}) {
    const auto block = heap().allocate(bytes);
    ASSERT_FALSE(block.isOk());
    EXPECT_EQ(block.status().code(), StatusCode::kSystem);
    EXPECT_NE(block.status().message().find("SHARDWIRE_HEAP_BYTES"), std::string::npos);
  }
}

struct Block {
  std::byte* bytes;
  std::size_t size;
  unsigned char mark;
};

void check(const Block& block) {
  for (std::size_t i = 0; i < block.size; i += 97) {
    ASSERT_EQ(static_cast<unsigned char>(block.bytes[i]), block.mark);
  }
  if (block.size > 0) {
    ASSERT_EQ(static_cast<unsigned char>(block.bytes[block.size - 1]), block.mark);
  }
}

// Every block keeps its own pattern whatever happens to the other blocks: no two overlap.
void allocateAndFreeAtRandom(unsigned seed, int numSteps) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  for (int step = 0; step < numSteps; ++step) {
    if (random() % 5 < 3 || blocks.empty()) {
      const int magnitude = static_cast<int>(random() % 22);  // all sizes up to 4 MiB about equally often, by magnitude
      const std::size_t size = random() % ((std::size_t{1} << magnitude) + 1);
      Block block{allocate(size), size, static_cast<unsigned char>(random())};
      std::memset(block.bytes, block.mark, size);
      blocks.push_back(block);
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      check(blocks.back());
      heap().free(blocks.back().bytes);
      blocks.pop_back();
    }
    if (blocks.size() > 60) {
      for (const Block& block : blocks) {
        check(block);
        heap().free(block.bytes);
      }
      blocks.clear();
    }
  }
  for (const Block& block : blocks) {
    check(block);
    heap().free(block.bytes);
  }
}

TEST(SharedHeap, BlocksNeverOverlap) {
  const std::uint64_t before = heap().usedBytes();
  for (unsigned seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    allocateAndFreeAtRandom(seed, 3000);
  }
  EXPECT_EQ(heap().usedBytes(), before);
}

TEST(SharedHeap, ServesManyThreads) {
  const std::uint64_t before = heap().usedBytes();
  heap();
  testing::runRanksAsThreads(4, [](Rank rank) { allocateAndFreeAtRandom(100 + static_cast<unsigned>(rank), 1500); });
  EXPECT_EQ(heap().usedBytes(), before);
}

TEST(SharedHeap, TakesFreedLargeBlocksAgainWithTheirPages) {
  constexpr std::size_t kSize = std::size_t{8} << 20;
  std::byte* block = allocate(kSize);
  std::memset(block, 1, kSize);
  const std::uint64_t resident = residentBytes(heap());
  for (int i = 0; i < 10; ++i) {
    heap().free(block);
    block = allocate(kSize);
    std::memset(block, i, kSize);
  }
  EXPECT_EQ(residentBytes(heap()), resident);
  heap().free(block);
}

TEST(SharedHeap, ReturnsPagesBeyondItsCacheAndUsesAllOfASmallReservation) {
  runRanksAsProcesses(1, [](Rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", "64M", 1);
    auto made = SharedHeap::instance();  // this process was forked: the heap belongs to this process
    ASSERT_TRUE(made.isOk()) << made.status().message();
    SharedHeap& small = **made;
    ASSERT_EQ(small.reservedBytes(), std::uint64_t{64} << 20);
    // Touch nearly all of the heap in small pieces, free the pieces, and allocate nearly all in one block: the pieces
    // must become one again.
    std::vector<void*> pieces;
    while (true) {
      const auto piece = small.allocate(300000);
      if (!piece.isOk()) {
        break;
      }
      std::memset(*piece, 1, 300000);
      pieces.push_back(*piece);
    }
    EXPECT_GT(small.usedBytes(), std::uint64_t{60} << 20);
    const std::uint64_t resident = residentBytes(small);
    for (void* piece : pieces) {
      small.free(piece);
    }
    EXPECT_EQ(residentBytes(small), resident);  // kept for reuse: the cache is larger than this heap
    const auto whole = small.allocate(std::size_t{64} << 20);
    ASSERT_TRUE(whole.isOk()) << whole.status().message();
    // The join of clean and dirty extents gave the pages back: the next block has new pages.
    const auto* bytes = static_cast<const std::byte*>(*whole);
    for (std::size_t at = 0; at < std::size_t{64} << 20; at += 4096) {
      ASSERT_EQ(bytes[at], std::byte{0});
    }
    EXPECT_FALSE(small.allocate(1).isOk());
    small.free(*whole);
    EXPECT_EQ(small.usedBytes(), 0U);
  });
}

TEST(SharedHeap, AForkedChildLeavesItsParentsHeapAlone) {
  SharedHeap* parents = &heap();
  std::byte* inherited = allocate(1000);
  std::memset(inherited, 7, 1000);
  const std::uint64_t used = heap().usedBytes();
  runRanksAsProcesses(1, [&](Rank) {
    EXPECT_EQ(SharedHeap::instanceIfMade(), nullptr);
    ASSERT_TRUE(SharedHeap::instanceOrInherited().isOk());
    EXPECT_EQ(*SharedHeap::instanceOrInherited(), parents);
    EXPECT_EQ(inherited[999], std::byte{7});
    std::memset(inherited, 8, 1000);  // the child's own copy from here on
    EXPECT_EQ(inherited[999], std::byte{8});
    const auto early = parents->allocate(500);
    ASSERT_TRUE(early.isOk());
    SharedHeap::freeBlock(*early);
    SharedHeap::freeBlock(inherited);
    EXPECT_EQ(parents->offsetOf(inherited, 1000), std::nullopt);
    const auto ordinary = parents->allocate(5000);
    ASSERT_TRUE(ordinary.isOk());
    std::memset(*ordinary, 1, 5000);
    EXPECT_EQ(parents->offsetOf(*ordinary, 5000), std::nullopt);
    const auto other = parents->allocate(64);
    ASSERT_TRUE(other.isOk());
    parents->free(*ordinary);
    EXPECT_THROW(parents->free(*ordinary), std::logic_error);
    parents->free(inherited);

    const auto own = SharedHeap::instance();
    ASSERT_TRUE(own.isOk()) << own.status().message();
    EXPECT_NE(*own, parents);
    const auto block = (*own)->allocate(100);
    ASSERT_TRUE(block.isOk());
    EXPECT_TRUE((*own)->offsetOf(*block, 100));
    EXPECT_EQ((*own)->offsetOf(inherited, 1000), std::nullopt);
    (*own)->free(*block);
    (*own)->free(inherited);
    (*own)->free(*other);
    const auto last = (*own)->allocate(100);
    ASSERT_TRUE(last.isOk());
    SharedHeap::freeBlock(*last);
    SharedHeap::freeBlock(inherited);
    EXPECT_EQ((*own)->usedBytes(), 0U);
  });
  EXPECT_EQ(heap().usedBytes(), used);
  EXPECT_EQ(inherited[999], std::byte{7});
  heap().free(inherited);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // the sanitizers need the address space
// From here on this process may map 1 GiB more; a forked process still maps the parent's heap.
void limitAddressSpace() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * 4096 + (std::uint64_t{1} << 30);
  const rlimit limit{bytes, bytes};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
}

// An emulator of a processor may keep the limit from the kernel.
bool isAddressSpaceLimited() {
  const std::size_t bytes = std::size_t{2} << 30;
  void* memory = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED || ::munmap(memory, bytes) != 0;
}

TEST(SharedHeap, MakesDoWithLimitedAddressSpace) {
  SharedValue<std::atomic<bool>> isLimited;
  runRanksAsProcesses(1, [&](Rank) {
    limitAddressSpace();
    *isLimited = isAddressSpaceLimited();
  });
  if (!*isLimited) {
    GTEST_SKIP() << "RLIMIT_AS limits nothing here";
  }
  runRanksAsProcesses(1, [](Rank) {
    limitAddressSpace();
    const auto made = SharedHeap::instance();
    ASSERT_TRUE(made.isOk()) << made.status().message();
    EXPECT_LT((*made)->reservedBytes(), std::uint64_t{1} << 30);
    EXPECT_TRUE((*made)->allocate(1000).isOk());
  });
  runRanksAsProcesses(1, [](Rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", "4G", 1);  // a warning states the smaller size
    limitAddressSpace();
    const auto made = SharedHeap::instance();
    ASSERT_TRUE(made.isOk()) << made.status().message();
    EXPECT_LT((*made)->reservedBytes(), std::uint64_t{4} << 30);
    EXPECT_GT((*made)->reservedBytes(), 0u);
    EXPECT_TRUE((*made)->allocate(1000).isOk());
  });
}
#endif

// Pages that one thread is giving back to the system are in no table of free memory: another thread that needs the
// pages waits.
TEST(SharedHeap, HasRoomWhileAnotherThreadGivesPagesBack) {
  runRanksAsProcesses(1, [](Rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", "64M", 1);
    auto made = SharedHeap::instance();
    ASSERT_TRUE(made.isOk()) << made.status().message();
    constexpr std::size_t kUnit = std::size_t{2} << 20;
    const auto kept = (*made)->allocate(kUnit);
    ASSERT_TRUE(kept.isOk());
    for (int round = 0; round < 10; ++round) {
      std::vector<void*> blocks;
      for (auto block = (*made)->allocate(kUnit); block.isOk(); block = (*made)->allocate(kUnit)) {
        std::memset(*block, 1, kUnit);
        blocks.push_back(*block);
      }
      for (void* block : blocks) {
        (*made)->free(block);
      }
      // The whole heap cannot be allocated while one block is kept, but all other pages are given back before the
      // allocation fails.
      std::thread other([&] { EXPECT_FALSE((*made)->allocate((*made)->reservedBytes()).isOk()); });
      while (residentBytes(**made) == (*made)->reservedBytes()) {
        std::this_thread::yield();
      }
      const auto block = (*made)->allocate(kUnit);
      EXPECT_TRUE(block.isOk()) << block.status().message();
      other.join();
      (*made)->free(block.isOk() ? *block : (*made)->allocate(kUnit).value());
    }
  });
}

TEST(SharedHeap, ScratchIsOrdinaryMemoryWhereTheHeapIsFull) {
  runRanksAsProcesses(1, [](Rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", "64M", 1);
    constexpr std::size_t kSize = std::size_t{40} << 20;
    const auto inHeap = allocateScratch(kSize);
    const auto outside = allocateScratch(kSize);
    ASSERT_TRUE(inHeap.isOk() && outside.isOk());
    EXPECT_TRUE((*SharedHeap::instance())->offsetOf(inHeap->get(), kSize).has_value());
    EXPECT_FALSE((*SharedHeap::instance())->offsetOf(outside->get(), 1).has_value());
    std::memset(outside->get(), 1, kSize);
    const auto nowhere = allocateScratch(std::size_t{1} << 47);
    ASSERT_FALSE(nowhere.isOk());
    EXPECT_NE(nowhere.status().message().find("SHARDWIRE_HEAP_BYTES; nor is there ordinary memory"), std::string::npos)
        << nowhere.status().message();
  });
}

TEST(SharedHeap, SaysSoWhenFilesAreLimited) {
  runRanksAsProcesses(1, [](Rank) {
    ::setenv("SHARDWIRE_HEAP_BYTES", "1G", 1);
    const rlimit limit{std::uint64_t{1} << 20, std::uint64_t{1} << 20};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    const auto made = SharedHeap::instance();  // the kernel would send SIGXFSZ
    ASSERT_TRUE(made.isOk()) << made.status().message();
    EXPECT_EQ((*made)->reservedBytes(), 0u);
    const auto block = (*made)->allocate(std::size_t{4} << 20);  // in ordinary memory; a warning was logged
    ASSERT_TRUE(block.isOk()) << block.status().message();
    EXPECT_FALSE((*made)->offsetOf(*block, 1).has_value());
    (*made)->free(*block);
  });
}

}  // namespace
}  // namespace shardwire::internal
