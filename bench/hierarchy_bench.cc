// Collectives between several "hosts" of this machine (SHARDWIRE_HOST_ID), joined by shared memory inside and tcp
// between: the hierarchical algorithms against the flat algorithms, in turns. On one machine the wire costs processor
// time shared by all ranks, so fewer bytes between hosts show in the times. The gain from separate network links does
// not show.
#include <fmt/format.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_options.h"
#include "bench/bench_ranks.h"
#include "bench/report.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"

namespace shardwire::bench {
namespace {

constexpr int kRanksPerHost = 2;

struct Case {
  const char* name;
  const char* flat;  // SHARDWIRE_ALGORITHMS
  const char* hierarchical;
  std::function<Result<WorkPtr>(Communicator&, std::vector<std::vector<float>>&)> start;
};

TensorView viewOf(std::vector<float>& values) {
  return TensorView::contiguous(values.data(), DType::kFloat32, {static_cast<std::int64_t>(values.size())});
}

const std::array<Case, 3>& cases() {
  static const std::array<Case, 3> kCases = {
      Case{"all_reduce", "all_reduce=chunks", "all_reduce=hierarchical",
           [](Communicator& group, auto& tensors) { return group.allReduce(viewOf(tensors[0]), ReduceOp::kMax); }},
      Case{"all_gather", "all_gather=direct", "all_gather=hierarchical",
           [](Communicator& group, auto& tensors) {
             std::vector<TensorView> outputs;
             for (int rank = 0; rank < group.worldSize(); ++rank) {
               outputs.push_back(viewOf(tensors[static_cast<std::size_t>(rank) + 1]));
             }
             return group.allGather(viewOf(tensors[0]), outputs);
           }},
      Case{"broadcast", "broadcast=chunks", "broadcast=hierarchical",
           [](Communicator& group, auto& tensors) { return group.broadcast(viewOf(tensors[0]), 0); }}};
  return kCases;
}

std::unique_ptr<Communicator> join(MemoryStore& store, int rank, int size, const char* algorithms) {
  auto options = Options::fromEnvironment();
  if (!options.isOk()) {
    fail(options.status().message());
  }
  options->algorithms = algorithms;
  options->transports = "shm,tcp";
  options->hostId = fmt::format("host{}", rank / kRanksPerHost);
  auto group = Communicator::create(store, rank, size, *options, "bench");
  if (!group.isOk()) {
    fail(group.status().message());
  }
  return std::move(*group);
}

std::string body(BenchRanks& ranks, const BenchOptions& options, std::vector<std::unique_ptr<MemoryStore>>& stores) {
  std::string text;
  for (std::size_t c = 0; c < cases().size(); ++c) {
    const Case& one = cases()[c];
    const auto flat = join(*stores[2 * c], ranks.rank(), ranks.size(), one.flat);
    const auto hierarchical = join(*stores[2 * c + 1], ranks.rank(), ranks.size(), one.hierarchical);
    for (std::size_t bytes = options.minBytes; bytes <= options.maxBytes; bytes *= 4) {
      std::vector<std::vector<float>> tensors(static_cast<std::size_t>(ranks.size()) + 1,
                                              std::vector<float>(bytes / sizeof(float), 1.0F));
      std::vector<double> times[2];
      for (int turn = 0; turn < options.iterations; ++turn) {
        for (const int which : {0, 1}) {
          Communicator& group = which == 0 ? *flat : *hierarchical;
          const auto measured = ranks.measure(
              1, 3, [](int) {},
              [&] {
                auto work = one.start(group, tensors);
                if (!work.isOk() || !(*work)->wait().isOk()) {
                  fail("a collective failed");
                }
              });
          times[which].insert(times[which].end(), measured.begin(), measured.end());
        }
      }
      const double a = median(times[0]);
      const double b = median(times[1]);
      text += fmt::format("{:<12} {:>10} {:>12.1f} {:>12.1f} {:>8.2f}\n", one.name, bytes, a, b, b / a);
    }
  }
  return text;
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  using namespace shardwire::bench;
  BenchOptions options =
      parseBenchOptions(argc, argv, "hierarchical against flat collectives, hosts of two ranks each joined by tcp");
  std::vector<std::unique_ptr<shardwire::MemoryStore>> stores;
  for (std::size_t i = 0; i < 2 * cases().size(); ++i) {
    stores.push_back(std::make_unique<shardwire::MemoryStore>());
  }
  BenchRanks ranks(options.ranks);
  const auto text = ranks.run(options.pin, [&](int) { return body(ranks, options, stores); });
  if (!text) {
    return 1;
  }
  fmt::print("# {} ranks, {} on each host; us of the slowest rank, medians\n{:<12} {:>10} {:>12} {:>12} {:>8}\n{}",
             options.ranks, kRanksPerHost, "collective", "bytes", "flat", "hierarchical", "ratio", *text);
  return 0;
}
