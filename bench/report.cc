#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shardwire::bench {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

namespace {

nlohmann::ordered_json toJson(const Report& report) {
  nlohmann::ordered_json cases = nlohmann::ordered_json::object(), counts = nlohmann::ordered_json::object();
  for (const CaseResult& result : report.cases) {
    cases[result.name] = {{"bytes", result.bytes}, {"us", result.microseconds}};
  }
  for (const CountResult& result : report.counts) {
    counts[result.name] = result.value;
  }
  return {{"bench", report.bench}, {"cases", cases}, {"counts", counts}};
}

void printJson(const Report& report, const BenchOptions& options) {
  nlohmann::ordered_json all = toJson(report);
  all["ranks"] = options.ranks;
  all["rows"] = options.rows;
  all["columns"] = options.columns;
  fmt::print("{}\n", all.dump());
}

void printTable(const Report& report, const BenchOptions& options) {
  fmt::print("# {}: {} ranks, f32 {} x {}; times of the slowest rank\n", report.bench, options.ranks, options.rows,
             options.columns);
  fmt::print("# {:<26} {:>12} {:>6} {:>11} {:>11} {:>11} {:>9}\n", "case", "bytes/rank", "n", "median(us)", "min(us)",
             "p90(us)", "GB/s");
  for (const CaseResult& result : report.cases) {
    std::vector<double> sorted = result.microseconds;
    std::sort(sorted.begin(), sorted.end());
    const double middle = median(sorted);
    const std::string rate =
        result.bytes == 0 ? "-" : fmt::format("{:.2f}", static_cast<double>(result.bytes) / middle / 1e3);
    fmt::print("  {:<26} {:>12} {:>6} {:>11.2f} {:>11.2f} {:>11.2f} {:>9}\n", result.name, result.bytes, sorted.size(),
               middle, sorted.front(), sorted[(sorted.size() - 1) * 9 / 10], rate);
  }
  for (const CountResult& result : report.counts) {
    fmt::print("  {:<26} {:>12}\n", result.name, result.value);
  }
}

}  // namespace

std::string toText(const Report& report) {
  return toJson(report).dump();
}

Report fromText(const std::string& text) {
  const nlohmann::ordered_json all = nlohmann::ordered_json::parse(text);
  Report report{all["bench"], {}, {}};
  for (const auto& [name, result] : all["cases"].items()) {
    report.cases.push_back({name, result["bytes"], result["us"]});
  }
  for (const auto& [name, value] : all["counts"].items()) {
    report.counts.push_back({name, value});
  }
  return report;
}

void print(const Report& report, const BenchOptions& options) {
  if (options.json) {
    printJson(report, options);
  } else {
    printTable(report, options);
  }
}

}  // namespace shardwire::bench
