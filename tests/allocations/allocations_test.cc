// A re-run of a bound op, and a repeated collective, allocate nothing; the flight recorder little. A counting operator
// new replaces the ordinary one for the whole test program.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>

#include "backend/exec/exchange.h"
#include "backend/exec/op_recorder.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"

namespace {
std::atomic<std::uint64_t> numAllocations{0};

void* countedAllocate(std::size_t bytes) {
  numAllocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) {
  return countedAllocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return countedAllocate(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  numAllocations.fetch_add(1, std::memory_order_relaxed);
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace shardwire::internal {
namespace {

using testing::runRanksAsProcesses;

// Rank r has the rows, wants the columns.
LocalSpec reshapeSpec(Rank rank, int n, std::int64_t rows) {
  const std::int64_t whole = rows * n;
  LocalSpec spec;
  spec.tensors.push_back({.name = "", .shape = Dims{whole, whole}, .dtype = DType::kFloat32});
  spec.inputs.push_back(
      {.localShape = {rows, whole}, .slices = {{.slice = {{rank * rows, 0}, {rows, whole}}, .localOffset = {0, 0}}}});
  spec.outputs.push_back(
      {.localShape = {whole, rows}, .slices = {{.slice = {{0, rank * rows}, {whole, rows}}, .localOffset = {0, 0}}}});
  return spec;
}

TEST(Allocations, NoneInABoundRunNorInARepeatedCollective) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    Options options;
    options.timeout = std::chrono::seconds(30);
    auto group = Communicator::create(store, rank, 2, options, "");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    for (const std::int64_t rows : {4, 300}) {  // one frame; posted and read by the peer
      auto op = (*group)->compileOp(reshapeSpec(rank, 2, rows));
      ASSERT_TRUE(op.isOk()) << op.status().message();
      std::vector<float> input(static_cast<std::size_t>(2 * rows * rows), static_cast<float>(rank));
      std::vector<float> output(input.size());
      const auto in = TensorView::contiguous(input.data(), DType::kFloat32, {rows, 2 * rows});
      const auto out = TensorView::contiguous(output.data(), DType::kFloat32, {2 * rows, rows});
      auto bound = (*op)->bind({&in, 1}, {&out, 1});
      ASSERT_TRUE(bound.isOk());
      const auto repeat = [&](int times) {
        for (int i = 0; i < times; ++i) {
          auto run = (*bound)->run();
          ASSERT_TRUE(run.isOk() && (*run)->wait().isOk());
          auto sum = (*group)->allReduce(in, ReduceOp::kMax);
          ASSERT_TRUE(sum.isOk() && (*sum)->wait().isOk());
        }
      };
      repeat(200);
      const std::uint64_t before = numAllocations;
      repeat(200);
      const std::uint64_t made = numAllocations - before;
      // A bound run allocates nothing. A long all_reduce passes its views without a vector, too. The limit tolerates
      // the rare growth of a buffer: when a peer runs ahead farther than ever before, or when the progress thread
      // completes an operation for the first time. One allocation in each of these 400 operations, or in each second
      // one, is far above the limit.
      EXPECT_LE(made, 20u) << rows << " rows";
    }
  });
}

// A queue takes a new tag for each request. Separate blocks, spread among the program's blocks, would break up the room
// that large tensors leave.
TEST(Allocations, FewForMessagesThatEachHaveATag) {
  OpRecorder recorder(256);
  Exchange activity("", 1, 0);
  activity.description = std::make_shared<const std::string>("send(float32[1], to rank 1, tag 1)");
  const auto record = [&](int first, int last) {
    for (int tag = first; tag < last; ++tag) {
      recorder.call({.name = "send", .isMessage = true, .source = 0, .destination = 1, .tag = tag}, activity);
    }
  };
  record(0, 256);  // the first lap of the ring
  const std::uint64_t before = numAllocations;
  record(256, 20000);
  EXPECT_LE(numAllocations - before, 50u);
}

}  // namespace
}  // namespace shardwire::internal
