// Shard(0) -> Shard(1) between processes of this machine, against copies of as many bytes; and the cost of small
// operations. All buffers are rewritten before every iteration, outside of the timed part. Use an otherwise quiet
// machine.
#include "bench/bench_options.h"
#include "bench/bench_ranks.h"
#include "bench/report.h"
#include "bench/reshape_cases.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"

namespace shardwire::bench {
namespace {

constexpr int kCompileRanks = 8;
constexpr int kCompileSlices = 16;

using Body = void (*)(BenchRanks& ranks, Communicator& group, const BenchOptions& options, Report& report);

// Forks the ranks, joins them to a group, runs `body`, and adds the results to the report. Returns false when a rank
// failed.
bool runGroup(int numRanks, const BenchOptions& options, Report& report, Body body) {
  MemoryStore store;
  BenchRanks ranks(numRanks);
  const auto text = ranks.run(options.pin, [&](int rank) {
    const Result<Options> environment = Options::fromEnvironment();
    if (!environment.isOk()) {
      fail(environment.status().message());
    }
    auto group = Communicator::create(store, rank, numRanks, environment.value(), "bench");
    if (!group.isOk()) {
      fail(group.status().message());
    }
    Report mine;
    body(ranks, **group, options, mine);
    ranks.barrier();  // no rank leaves while others still need the rank
    return toText(mine);
  });
  if (!text.has_value()) {
    return false;
  }
  const Report measured = fromText(*text);
  report.cases.insert(report.cases.end(), measured.cases.begin(), measured.cases.end());
  report.counts.insert(report.counts.end(), measured.counts.begin(), measured.counts.end());
  return true;
}

void compileBody(BenchRanks& ranks, Communicator& group, const BenchOptions& options, Report& report) {
  runCompileCase(ranks, group, kCompileSlices, options, report);
}

int run(const BenchOptions& options) {
  Report report{"shardwire", {}, {}};
  bool isWell = !options.wants("compile_8x16") || runGroup(kCompileRanks, options, report, compileBody);
  isWell = runGroup(options.ranks, options, report, runLatencyCases) && isWell;
  isWell = runGroup(options.ranks, options, report, runReshapeCases) && isWell;
  print(report, options);
  return isWell ? 0 : 1;
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  return shardwire::bench::run(
      shardwire::bench::parseBenchOptions(argc, argv, "shardwire: reshape and latency between local processes"));
}
