// The cost of compiling on one rank: encode, decode, merge and plan. Rows in, columns out, so every rank exchanges
// boxes with many ranks.
#include <benchmark/benchmark.h>

#include "ops/plan/plan_row.h"
#include "ops/plan/redistribute.h"

namespace shardwire::internal {
namespace {

// The global tensor as a grid of tiles, numTiles of them: every rank has `slices` neighbouring tiles in row-major order
// as inputs, and wants as many in column-major order.
std::vector<LocalSpec> tileSpecs(std::int64_t numRanks, std::int64_t slices) {
  const std::int64_t numTiles = numRanks * slices;
  std::int64_t rows = 1;
  while (rows * rows < numTiles) {
    rows *= 2;
  }
  const std::int64_t columns = numTiles / rows;
  const Dims tile{16, 64};
  std::vector<LocalSpec> specs(static_cast<std::size_t>(numRanks));
  for (std::int64_t rank = 0; rank < numRanks; ++rank) {
    LocalSpec& spec = specs[static_cast<std::size_t>(rank)];
    spec.tensors.push_back({"w", Dims{rows * tile[0], columns * tile[1]}, DType::kFloat32, ReduceOp::kNone});
    for (std::int64_t s = 0; s < slices; ++s) {
      const std::int64_t number = rank * slices + s;
      const Dims in{number / columns * tile[0], number % columns * tile[1]};
      const Dims out{number % rows * tile[0], number / rows * tile[1]};
      spec.inputs.push_back({0, tile, {{{in, tile}, {0, 0}}}, 0});
      spec.outputs.push_back({0, tile, {{{out, tile}, {0, 0}}}, 0});
    }
  }
  return specs;
}

void planOneRank(benchmark::State& state) {
  const GlobalSpec spec = mergeSpecs(tileSpecs(state.range(0), state.range(1))).value();
  const Rank rank = static_cast<Rank>(state.range(0) / 2);
  for (auto _ : state) {
    benchmark::DoNotOptimize(redistribute(spec, rank));
  }
}
BENCHMARK(planOneRank)
    ->Args({8, 16})
    ->Args({64, 64})
    ->Args({1024, 64})
    ->Args({16384, 1})
    ->Unit(benchmark::kMicrosecond);

// One local tensor of many slices, as a _StridedShard makes it, instead of many local tensors.
void planOneRankOfManySlices(benchmark::State& state) {
  std::vector<LocalSpec> specs = tileSpecs(state.range(0), state.range(1));
  for (LocalSpec& spec : specs) {
    for (std::vector<LocalTensor>* locals : {&spec.inputs, &spec.outputs}) {
      LocalTensor all{0, {state.range(1) * 16, 64}, {}, 0};
      for (std::int64_t s = 0; s < state.range(1); ++s) {
        all.slices.push_back({(*locals)[static_cast<std::size_t>(s)].slices[0].slice, {s * 16, 0}});
      }
      *locals = {all};
    }
  }
  const GlobalSpec spec = mergeSpecs(specs).value();
  for (auto _ : state) {
    benchmark::DoNotOptimize(redistribute(spec, 0));
  }
}
BENCHMARK(planOneRankOfManySlices)->Args({8, 16})->Args({1024, 64})->Unit(benchmark::kMicrosecond);

// Every rank holds an addend of the whole tensor and wants its rows of the sum.
void planReduceScatter(benchmark::State& state) {
  const std::int64_t numRanks = state.range(0);
  std::vector<LocalSpec> specs(static_cast<std::size_t>(numRanks));
  for (std::int64_t rank = 0; rank < numRanks; ++rank) {
    LocalSpec& spec = specs[static_cast<std::size_t>(rank)];
    spec.tensors.push_back({"w", Dims{numRanks, 1024}, DType::kFloat32, ReduceOp::kSum});
    spec.inputs.push_back({0, {numRanks, 1024}, {{{{0, 0}, {numRanks, 1024}}, {0, 0}}}, 0});
    spec.outputs.push_back({0, {1, 1024}, {{{{rank, 0}, {1, 1024}}, {0, 0}}}, 0});
  }
  const GlobalSpec spec = mergeSpecs(specs).value();
  for (auto _ : state) {
    benchmark::DoNotOptimize(redistribute(spec, 0));
  }
}
BENCHMARK(planReduceScatter)->Arg(8)->Arg(256)->Arg(1024)->Unit(benchmark::kMicrosecond);

// Shards in, everything out, everywhere: the most traffic a spec can ask for.
void planAllGather(benchmark::State& state) {
  std::vector<LocalSpec> specs = tileSpecs(state.range(0), 1);
  const Dims shape = *specs[0].tensors[0].shape;
  for (LocalSpec& spec : specs) {
    spec.outputs = {{0, shape, {{{{0, 0}, shape}, {0, 0}}}, 0}};
  }
  const GlobalSpec spec = mergeSpecs(specs).value();
  for (auto _ : state) {
    benchmark::DoNotOptimize(redistribute(spec, 0));
  }
}
BENCHMARK(planAllGather)->Arg(8)->Arg(1024)->Unit(benchmark::kMicrosecond);

// All of compile but the exchange: encode one spec, decode all, merge, plan.
void compileOneRank(benchmark::State& state) {
  const std::vector<LocalSpec> specs = tileSpecs(state.range(0), state.range(1));
  std::vector<std::string> encoded;
  for (const LocalSpec& spec : specs) {
    encoded.push_back(encodeSpec(spec));
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(encodeSpec(specs[0]));
    std::vector<LocalSpec> decoded;
    for (const std::string& bytes : encoded) {
      decoded.push_back(decodeSpec(bytes).value());
    }
    const Result<GlobalSpec> spec = mergeSpecs(decoded);
    benchmark::DoNotOptimize(redistribute(spec.value(), 0));
  }
}
BENCHMARK(compileOneRank)
    ->Args({8, 16})
    ->Args({64, 16})
    ->Args({1024, 1})
    ->Args({1024, 16})
    ->Args({1024, 64})
    ->Args({16384, 1})
    ->Unit(benchmark::kMicrosecond);

// The cost on rank 0 when rank 0 plans for all ranks (WhoPlans::kRank0), beside compileOneRank: decode all specs,
// merge, and every rank's row as bytes.
void compileAllRanks(benchmark::State& state) {
  std::vector<std::string> encoded;
  for (const LocalSpec& spec : tileSpecs(state.range(0), state.range(1))) {
    encoded.push_back(encodeSpec(spec));
  }
  for (auto _ : state) {
    std::vector<LocalSpec> decoded;
    for (const std::string& bytes : encoded) {
      decoded.push_back(decodeSpec(bytes).value());
    }
    const GlobalSpec spec = mergeSpecs(decoded).value();
    const auto planner = Planner::create(spec).value();
    for (Rank rank = 0; rank < static_cast<Rank>(state.range(0)); ++rank) {
      benchmark::DoNotOptimize(encodeRow({specOf(spec, rank), 0, planner->planOf(rank)}));
    }
  }
}
BENCHMARK(compileAllRanks)
    ->Args({8, 16})
    ->Args({64, 16})
    ->Args({1024, 1})
    ->Args({1024, 16})
    ->Args({1024, 64})
    ->Unit(benchmark::kMicrosecond);

void traffic(benchmark::State& state) {
  const GlobalSpec spec = mergeSpecs(tileSpecs(state.range(0), state.range(1))).value();
  for (auto _ : state) {
    benchmark::DoNotOptimize(trafficOf(spec));
  }
}
BENCHMARK(traffic)->Args({8, 16})->Args({1024, 64})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace shardwire::internal

BENCHMARK_MAIN();
