// The kernels by themselves, in one process: copies and reductions against memcpy, in cache and out of it, on every
// instruction set.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "ops/boxes/copy_box.h"
#include "ops/boxes/reduce_box.h"
#include "ops/reduce/isa_kernels.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kMostBytes = std::size_t{128} << 20;

// Four buffers, made and touched once.
std::byte* buffer(int i) {
  static std::byte* const memory = [] {
    void* mapped = ::mmap(nullptr, 4 * kMostBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      std::abort();
    }
    std::memset(mapped, 1, 4 * kMostBytes);
    return static_cast<std::byte*>(mapped);
  }();
  return memory + static_cast<std::size_t>(i) * kMostBytes;
}

void setRate(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void plainMemcpy(benchmark::State& state) {
  const std::size_t bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    std::memcpy(buffer(0), buffer(1), bytes);
    benchmark::ClobberMemory();
  }
  setRate(state, bytes);
}
BENCHMARK(plainMemcpy)->RangeMultiplier(16)->Range(64 << 10, 64 << 20)->UseRealTime();

void copyContiguous(benchmark::State& state) {
  const std::int64_t bytes = state.range(0);
  for (auto _ : state) {
    copyBox({buffer(0), {1}}, {buffer(1), {1}}, {bytes}, 1);
    benchmark::ClobberMemory();
  }
  setRate(state, static_cast<std::size_t>(bytes));
}
BENCHMARK(copyContiguous)->RangeMultiplier(16)->Range(64 << 10, 64 << 20)->UseRealTime();

// rowBytes of every 2 * rowBytes, 32 MiB in all: the reshape between two ranks at 8 KiB.
constexpr std::int64_t kRowsBytes = std::int64_t{32} << 20;

void memcpyPerRow(benchmark::State& state) {
  const std::int64_t row = state.range(0), numRows = kRowsBytes / row;
  for (auto _ : state) {
    for (std::int64_t i = 0; i < numRows; ++i) {
      std::memcpy(buffer(0) + i * row, buffer(1) + 2 * i * row, static_cast<std::size_t>(row));
    }
    benchmark::ClobberMemory();
  }
  setRate(state, kRowsBytes);
}
BENCHMARK(memcpyPerRow)->RangeMultiplier(8)->Range(16, 64 << 10)->UseRealTime();

void copyRows(benchmark::State& state) {
  const std::int64_t row = state.range(0);
  for (auto _ : state) {
    copyBox({buffer(0), {row, 1}}, {buffer(1), {2 * row, 1}}, {kRowsBytes / row, row}, 1,
            static_cast<StoreHint>(state.range(1)));
    benchmark::ClobberMemory();
  }
  setRate(state, kRowsBytes);
}
BENCHMARK(copyRows)->ArgNames({"row", "hint"})->ArgsProduct({{16, 128, 1024, 8192, 65536}, {0, 1}})->UseRealTime();

void transpose(benchmark::State& state) {
  const std::int64_t elem = state.range(0), extent = 2048;
  for (auto _ : state) {
    copyBox({buffer(0), {extent * elem, elem}}, {buffer(1), {elem, extent * elem}}, {extent, extent},
            static_cast<std::size_t>(elem));
    benchmark::ClobberMemory();
  }
  setRate(state, static_cast<std::size_t>(extent * extent * elem));
}
BENCHMARK(transpose)->ArgName("elem")->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Arg(16)->UseRealTime();

// Rate of output bytes. Sources are as long as the output each.
void reduce(benchmark::State& state, DType dtype, ReduceOp op, Isa isa) {
  if (kernelsOf(isa) == nullptr) {
    state.SkipWithError("this CPU does not have it");
    return;
  }
  useKernelsForTest(isa);
  const std::size_t bytes = static_cast<std::size_t>(state.range(0)),
                    numSources = static_cast<std::size_t>(state.range(1));
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < numSources; ++i) {
    sources.push_back(buffer(1) + i * bytes);
  }
  for (auto _ : state) {
    reduceContiguous(buffer(0), sources, bytes / elementBytes(dtype), dtype, op);
    benchmark::ClobberMemory();
  }
  setRate(state, bytes);
}

constexpr std::size_t kLongBytes = std::size_t{64} << 20;

// A long copy, or sum of two sources, to a destination that lies `offset` bytes above its source modulo a page: kernels
// that stream past the cache depend on it.
void longMove(benchmark::State& state, bool isSum, Isa isa) {
  useKernelsForTest(isa);
  std::byte* const dst = buffer(0) + state.range(0);
  const std::vector<const std::byte*> sources = {buffer(1), buffer(2)};
  for (auto _ : state) {
    if (isSum) {
      reduceContiguous(dst, sources, kLongBytes / sizeof(float), DType::kFloat32, ReduceOp::kSum);
    } else {
      copyBox({dst, {1}}, {buffer(1), {1}}, {static_cast<std::int64_t>(kLongBytes)}, 1);
    }
    benchmark::ClobberMemory();
  }
  setRate(state, kLongBytes);
}

int registerLongMoves() {
  for (int isa = 0; isa < kNumIsas; ++isa) {
    if (kernelsOf(static_cast<Isa>(isa)) == nullptr) {
      continue;
    }
    for (const bool isSum : {false, true}) {
      const std::string name = std::string(isSum ? "longSum/" : "longCopy/") + kernelsOf(static_cast<Isa>(isa))->name;
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) { longMove(state, isSum, static_cast<Isa>(isa)); })
          ->ArgName("offset")
          ->ArgsProduct({{0, 64, 128, 2048}})
          ->UseRealTime();
    }
  }
  return 0;
}
[[maybe_unused]] const int kLongMoves = registerLongMoves();

int registerReductions() {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3FN, DType::kInt64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (int isa = 0; isa < kNumIsas; ++isa) {
        if (kernelsOf(static_cast<Isa>(isa)) == nullptr) {
          continue;
        }
        const std::string name = "reduce/" + std::string(dtypeName(dtype)) + "/" + std::string(reduceOpName(op)) + "/" +
                                 kernelsOf(static_cast<Isa>(isa))->name;
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=](benchmark::State& state) { reduce(state, dtype, op, static_cast<Isa>(isa)); })
            ->ArgNames({"bytes", "sources"})
            ->ArgsProduct({{64 << 10, 32 << 20}, {2, 4}})
            ->UseRealTime();
      }
    }
  }
  return 0;
}
[[maybe_unused]] const int kRegistered = registerReductions();

}  // namespace
}  // namespace shardwire::internal
