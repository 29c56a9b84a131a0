// Symmetric memory between two processes of this host: an atomic, a signal there and back, a put of 1 MiB, a barrier.
// The same as bench/openshmem_bench.c does under oshrun; bench/symm.py runs both by turns. Usage: symm_bench [rounds]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "backend/symm/word_ops.h"
#include "bench/bench_ranks.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"

namespace shardwire::bench {
namespace {

using internal::applyWord;

constexpr std::size_t kLongBytes = std::size_t{1} << 20;

double microsecondsOf(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

std::shared_ptr<SymmetricMemory> blockOf(Communicator& group, std::size_t bytes) {
  auto made = group.makeSymmetric({.bytes = bytes, .text = "bench", .isZeroed = true});
  if (!made.isOk()) {
    fail(made.status().message());
  }
  return *made;
}

void expectOk(const Status& status) {
  if (!status.isOk()) {
    fail(status.message());
  }
}

// Rank 0 adds to rank 1's word.
double fetchAdd(SymmetricMemory& block, int rounds) {
  const auto begin = Clock::now();
  for (int i = 0; i < rounds; ++i) {
    applyWord(block.address(1), DType::kInt64, WordOp::kAdd, 1);
    block.wake(1);
  }
  return microsecondsOf(begin) / rounds;
}

double thereAndBack(SymmetricMemory& block, int rounds) {
  const Rank peer = 1 - block.rank();
  const auto begin = Clock::now();
  for (int i = 1; i <= rounds; ++i) {
    const auto value = static_cast<std::uint64_t>(i);
    if (block.rank() == 0) {
      applyWord(block.address(peer) + 64, DType::kInt64, WordOp::kSet, value);
      block.wake(peer);
    }
    expectOk(block.waitUntil(64, DType::kInt64, Comparison::kGe, value, std::nullopt, {}).status());
    if (block.rank() == 1) {
      applyWord(block.address(peer) + 64, DType::kInt64, WordOp::kSet, value);
      block.wake(peer);
    }
  }
  return microsecondsOf(begin) / rounds;
}

double putLong(SymmetricMemory& block, const std::byte* source, int rounds) {
  const Dims shape{static_cast<std::int64_t>(kLongBytes)};
  const PartView to{0, DType::kUInt8, shape, {1}};
  const TensorView from = TensorView::contiguous(const_cast<std::byte*>(source), DType::kUInt8, shape);
  const auto begin = Clock::now();
  for (int i = 0; i < rounds; ++i) {
    expectOk(block.put(1, to, from, {}));
    expectOk(block.quiet(std::nullopt));
  }
  return microsecondsOf(begin) / rounds;
}

double barriers(SymmetricMemory& block, int rounds) {
  const auto begin = Clock::now();
  for (int i = 0; i < rounds; ++i) {
    expectOk(block.barrier(0, std::nullopt));
  }
  return microsecondsOf(begin) / rounds;
}

std::string measureAll(Store& store, int rank, int rounds) {
  const Options options = *Options::fromEnvironment();
  auto group = Communicator::create(store, rank, 2, options, "bench");
  if (!group.isOk()) {
    fail(group.status().message());
  }
  const auto words = blockOf(**group, 128);
  const auto longBlock = blockOf(**group, kLongBytes);
  const auto source = std::make_unique<std::byte[]>(kLongBytes);
  std::memset(source.get(), 1, kLongBytes);
  std::string report;
  const auto add = [&](const char* name, double us) { report += fmt::format("{:<24} {:9.3f} us\n", name, us); };
  expectOk(words->barrier(0, std::nullopt));
  if (rank == 0) {
    add("fetch_add", fetchAdd(*words, rounds));
    (void)putLong(*longBlock, source.get(), 10);
    add("put 1 MiB + quiet", putLong(*longBlock, source.get(), rounds / 100 + 1));
  }
  // Over the other block: who sleeps for a word of a block is woken by every atomic on it.
  expectOk(longBlock->barrier(0, std::nullopt));
  add("set + wait, round trip", thereAndBack(*words, rounds));
  add("barrier", barriers(*words, rounds));
  expectOk((*group)->symmetricBarrier());
  return report;
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  using namespace shardwire::bench;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 100000;
  BenchRanks ranks(2);
  shardwire::MemoryStore store;
  const auto report = ranks.run(true, [&](int rank) { return measureAll(store, rank, rounds); });
  if (!report.has_value()) {
    return 1;
  }
  fmt::print("{}", *report);
  return 0;
}
