// Tests that operations leave nothing behind: after 100000 of every kind, over every data path, the process has as much
// of every resource as before.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "backend/memory/shared_heap.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::testing {
namespace {

constexpr Rank kGrowthRanks = 3;

// The resources of this process. The memory is the bytes handed out by malloc; a sanitizer's malloc has no such
// counter, and maps freely.
struct Belongings {
  std::size_t allocatedBytes = 0;
  std::size_t heapBytes = 0;
  std::ptrdiff_t numFds = 0;
  std::ptrdiff_t numThreads = 0;
  std::ptrdiff_t numMappings = 0;
};

std::ptrdiff_t countEntries(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return std::distance(begin(entries), end(entries));
}

Belongings belongings() {
  Belongings now;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto counts = mallinfo2();
  now.allocatedBytes = counts.uordblks + counts.hblkhd;
  std::ifstream maps("/proc/self/maps");
  now.numMappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
#endif
  now.heapBytes = internal::SharedHeap::instance().value()->usedBytes();
  now.numFds = countEntries("/proc/self/fd");
  now.numThreads = countEntries("/proc/self/task");
  return now;
}

constexpr int numOps() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 5000;
#else
  return 100000;
#endif
}

class Operations {
 public:
  explicit Operations(Communicator& group) : group_(group), memory_(4 * kGrowthRanks * kMostElems) {}

  // Number i of an endless row: all kinds, short and long, and tensors that must be packed.
  std::vector<Result<WorkPtr>> start(int i) {
    constexpr std::int64_t kElems[] = {1, 40, 3000, 0, kMostElems};
    const std::int64_t elems = kElems[i % 97 == 0 ? 4 : i % 4];
    const bool isStrided = i % 5 == 0;
    const Rank root = i % kGrowthRanks;
    const Rank next = (group_.rank() + 1) % kGrowthRanks;
    const auto view = [&](int number) {
      float* at = memory_.data() + number * kMostElems;
      return isStrided && elems > 0
                 ? TensorView{reinterpret_cast<std::byte*>(at), DType::kFloat32, {(elems + 1) / 2}, {2}}
                 : TensorView::contiguous(at, DType::kFloat32, {elems});
    };
    std::vector<TensorView> parts;
    std::vector<TensorView> others;
    for (int r = 0; r < kGrowthRanks; ++r) {
      parts.push_back(view(r));
      others.push_back(view(kGrowthRanks + r));
    }
    const std::vector<TensorView> none;
    const bool isRoot = group_.rank() == root;
    switch (i % 11) {
      case 0:
        return {group_.barrier()};
      case 1:
        return {group_.broadcast(view(0), root)};
      case 2:
        return {group_.allReduce(view(0), ReduceOp::kMax)};
      case 3:
        return {group_.reduce(view(0), root, ReduceOp::kMax)};
      case 4:
        return {group_.allGather(view(2 * kGrowthRanks), parts)};
      case 5:
        return {group_.gather(view(2 * kGrowthRanks), isRoot ? parts : none, root)};
      case 6:
        return {group_.scatter(view(2 * kGrowthRanks), isRoot ? parts : none, root)};
      case 7:
        return {group_.reduceScatter(view(2 * kGrowthRanks), parts, ReduceOp::kMax)};
      case 8:
        return {group_.allToAll(parts, others)};
      case 9:
        return {group_.allReduce(view(0), ReduceOp::kMax), group_.allReduce(view(1), ReduceOp::kSum)};
      default:
        return {
            group_.send(view(0), next, i % 3),
            group_.recv(view(1), i % 2 == 0 ? kAnySource : (group_.rank() + kGrowthRanks - 1) % kGrowthRanks, i % 3)};
    }
  }

 private:
  static constexpr std::int64_t kMostElems = 20000;
  Communicator& group_;
  std::vector<float> memory_;
};

class GrowthTest : public ::testing::TestWithParam<OrdinaryPath> {};

TEST_P(GrowthTest, NoneByManyOperationsOfEveryKind) {
  if (GetParam() == OrdinaryPath::kCrossMemory && !testing::hasCrossMemoryReads()) {
    GTEST_SKIP() << "this kernel has no process_vm_readv";
  }
  MemoryStore store;
  runRanksAsProcesses(
      kGrowthRanks,
      [&](Rank rank) {
        Options options;
        options.timeout = std::chrono::seconds(60);
        options.ordinaryPath = GetParam();
        auto group = Communicator::create(store, rank, kGrowthRanks, options, "growth");
        ASSERT_TRUE(group.isOk()) << group.status().message();
        Operations operations(**group);
        Belongings before;
        for (int i = 0; i < numOps(); ++i) {
          for (const auto& work : operations.start(i)) {
            ASSERT_TRUE(work.isOk()) << work.status().message();
            const Status status = (*work)->wait();
            ASSERT_TRUE(status.isOk()) << status.message();
          }
          if (i == numOps() * 3 / 10) {  // pools and spare buffers have reached full size by then
            before = belongings();
          }
        }
        const Belongings after = belongings();
        // A leak of one byte in each step shows.
        EXPECT_LE(after.allocatedBytes, before.allocatedBytes + static_cast<std::size_t>(numOps()) * 7 / 10);
        EXPECT_LE(after.heapBytes, before.heapBytes + 4096);
        EXPECT_EQ(after.numFds, before.numFds);
        EXPECT_EQ(after.numThreads, before.numThreads);
        EXPECT_LE(after.numMappings, before.numMappings + 4);
        auto last = (*group)->barrier();
        EXPECT_TRUE(last.isOk() && (*last)->wait().isOk());
      },
      std::chrono::seconds(300));
}

INSTANTIATE_TEST_SUITE_P(Paths, GrowthTest, ::testing::Values(OrdinaryPath::kStaged, OrdinaryPath::kCrossMemory),
                         [](const auto& info) {
                           return std::string(info.param == OrdinaryPath::kStaged ? "staged" : "copied");
                         });

}  // namespace
}  // namespace shardwire::testing
