#include "bench/bench_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

namespace shardwire::bench {

bool BenchOptions::wants(const std::string& name) const {
  return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
}

BenchOptions parseBenchOptions(int argc, char** argv, const std::string& about) {
  BenchOptions options;
  CLI::App app(about);
  app.add_option("-n,--ranks", options.ranks, "Ranks, all on this machine")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rows", options.rows, "Rows of the global f32 tensor")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--columns", options.columns, "Columns of it")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--min-bytes", options.minBytes, "Shortest tensors of collectives_bench")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-bytes", options.maxBytes, "Longest tensors of it")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("-i,--iterations", options.iterations, "Timed iterations per case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("-w,--warmup", options.warmup, "Iterations before them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--latency-iterations", options.latencyIterations, "Calls per latency case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--only", options.only, "Names of the cases to run")->delimiter(',');
  app.add_flag("--pin", options.pin, "Put each rank on a core of its own");
  app.add_flag("--json", options.json, "Print one line of JSON instead of a table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

}  // namespace shardwire::bench
