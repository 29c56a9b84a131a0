// Small operations: what a call costs when there is next to nothing to move.
#include <cstdint>

#include "bench/count_allocations.h"
#include "bench/reshape_cases.h"

namespace shardwire::bench {

namespace {

using Step = std::function<Result<WorkPtr>()>;

void runAndWait(const Step& step) {
  const Result<WorkPtr> work = step();
  const Status status = work.isOk() ? (*work)->wait() : work.status();
  if (!status.isOk()) {
    fail(status.message());
  }
}

// Every call is timed by itself; ranks keep in step through the operation alone.
void runLatencyCase(BenchRanks& ranks, const std::string& name, const BenchOptions& options, Report& report,
                    const Step& step) {
  if (!options.wants(name)) {
    return;
  }
  const int warmup = std::min(options.latencyIterations, 500);
  std::vector<double> microseconds(static_cast<std::size_t>(options.latencyIterations));
  for (int i = 0; i < warmup; ++i) {
    runAndWait(step);
  }
  ranks.barrier();
  const std::uint64_t before = numAllocations();
  for (double& one : microseconds) {
    const auto start = std::chrono::steady_clock::now();
    runAndWait(step);
    one = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }
  const std::uint64_t after = numAllocations();
  ranks.barrier();
  report.cases.push_back({name, 0, std::move(microseconds)});
  report.counts.push_back(
      {name + "_allocations_per_run", static_cast<double>(after - before) / options.latencyIterations});
}

// Tiles of one row: rank r has tiles [r * slices, ...), and wants every ranks.size()-th one.
LocalSpec tileSpec(const BenchRanks& ranks, int slices) {
  const std::int64_t width = 256, numTiles = std::int64_t{ranks.size()} * slices;
  LocalSpec spec;
  spec.tensors.push_back({"", Dims{numTiles, width}, DType::kFloat32, ReduceOp::kNone});
  for (std::int64_t i = 0; i < slices; ++i) {
    spec.inputs.push_back({0, {1, width}, {{{{ranks.rank() * slices + i, 0}, {1, width}}, {0, 0}}}, 0});
    spec.outputs.push_back({0, {1, width}, {{{{i * ranks.size() + ranks.rank(), 0}, {1, width}}, {0, 0}}}, 0});
  }
  return spec;
}

}  // namespace

void runLatencyCases(BenchRanks& ranks, Communicator& group, const BenchOptions& options, Report& report) {
  // 16 rows per rank in, 16 columns per rank out: 4 KiB at two ranks.
  const std::int64_t part = 16, whole = part * ranks.size(), from = part * ranks.rank();
  LocalSpec spec;
  spec.tensors.push_back({"", Dims{whole, whole}, DType::kFloat32, ReduceOp::kNone});
  spec.inputs.push_back({0, {part, whole}, {{{{from, 0}, {part, whole}}, {0, 0}}}, 0});
  spec.outputs.push_back({0, {whole, part}, {{{{0, from}, {whole, part}}, {0, 0}}}, 0});
  auto op = group.compileOp(spec);
  if (!op.isOk()) {
    fail(op.status().message());
  }
  std::vector<float> in(static_cast<std::size_t>(part * whole), 1.0f), out(in.size());
  const TensorView inputs[] = {TensorView::contiguous(in.data(), DType::kFloat32, {part, whole})};
  const TensorView outputs[] = {TensorView::contiguous(out.data(), DType::kFloat32, {whole, part})};
  auto bound = (*op)->bind(inputs, outputs);
  if (!bound.isOk()) {
    fail(bound.status().message());
  }
  runLatencyCase(ranks, "rerun", options, report, [&] { return (*bound)->run(); });
  float value = 0;
  runLatencyCase(ranks, "allreduce_4B", options, report,
                 [&] { return group.allReduce(TensorView::contiguous(&value, DType::kFloat32, {1}), ReduceOp::kSum); });
  runLatencyCase(ranks, "barrier", options, report, [&] { return group.barrier(); });
}

void runCompileCase(BenchRanks& ranks, Communicator& group, int slices, const BenchOptions& options, Report& report) {
  const std::string name = "compile_" + std::to_string(ranks.size()) + "x" + std::to_string(slices);
  const LocalSpec spec = tileSpec(ranks, slices);
  const auto compile = [&] {
    if (auto op = group.compileOp(spec); !op.isOk()) {
      fail(op.status().message());
    }
  };
  report.cases.push_back({name, 0,
                          ranks.measure(
                              options.warmup, options.iterations, [](int) {}, compile)});
}

}  // namespace shardwire::bench
