// The cost of a group by its number of ranks: milliseconds for a first and a further group, bytes through the store,
// memory, links, and the times of an all_reduce of 4 bytes and of a compiled op over eight peers. Ranks are threads of
// one process, so per-process costs are seen once and per-rank costs n times; docs/scale.md computes with the figures.
// SHARDWIRE_TRANSPORTS and SHARDWIRE_LINKS choose. Arguments: numbers of ranks.
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/bench_ranks.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"

namespace shardwire::bench {
namespace {

// Counts the bytes that ranks write to the store and read from the store.
class CountingStore final : public Store {
 public:
  Status set(const std::string& key, std::string_view value) override {
    in += key.size() + value.size();
    return store_.set(key, value);
  }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    auto value = store_.get(key, deadline);
    if (value.isOk()) {
      out += key.size() + value->size();
    }
    return value;
  }

  std::atomic<std::size_t> in{0};
  std::atomic<std::size_t> out{0};

 private:
  MemoryStore store_{std::size_t{64} << 20};
};

struct Footprint {
  double residentKib = 0;
};

Footprint footprint() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return {static_cast<double>(resident) * 4};
}

void onAll(int ranks, const std::function<void(Rank)>& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(body, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

using Groups = std::vector<std::unique_ptr<Communicator>>;

double milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

// Milliseconds until the slowest rank has the group.
double make(Groups* groups, CountingStore& store, int ranks, const Options& options, const std::string& name) {
  groups->resize(static_cast<std::size_t>(ranks));
  const auto start = Clock::now();
  onAll(ranks, [&](Rank rank) {
    auto group = Communicator::create(store, rank, ranks, options, name);
    if (!group.isOk()) {
      fail(group.status().message());
    }
    (*groups)[static_cast<std::size_t>(rank)] = std::move(*group);
  });
  return milliseconds(start);
}

void awaitWork(const Result<WorkPtr>& work) {
  if (const Status status = work.isOk() ? (*work)->wait() : work.status(); !status.isOk()) {
    fail(status.message());
  }
}

// Milliseconds of one all_reduce of `elems` floats on all ranks, the threads' start included.
double allReduce(const Groups& groups, std::size_t elems) {
  const auto start = Clock::now();
  onAll(static_cast<int>(groups.size()), [&](Rank rank) {
    std::vector<float> values(elems, 1.0F);
    const auto view = TensorView::contiguous(values.data(), DType::kFloat32, {static_cast<std::int64_t>(elems)});
    awaitWork(groups[static_cast<std::size_t>(rank)]->allReduce(view, ReduceOp::kSum));
    if (values[0] != static_cast<float>(groups.size())) {
      fail("all_reduce gave a wrong sum");
    }
  });
  return milliseconds(start);
}

// Rank r has row r and wants the rows of the next four ranks: each rank reads from four peers, and four peers read from
// the rank.
LocalSpec neighbours(Rank rank, int ranks) {
  LocalSpec spec;
  spec.tensors.push_back({.name = "", .shape = Dims{ranks, 256}, .dtype = DType::kFloat32});
  const auto row = [](Rank holder) {
    return LocalTensor{.localShape = {1, 256}, .slices = {{.slice = {{holder, 0}, {1, 256}}, .localOffset = {0, 0}}}};
  };
  spec.inputs.push_back(row(rank));
  for (int i = 1; i <= 4; ++i) {
    spec.outputs.push_back(row((rank + i) % ranks));
  }
  return spec;
}

// Milliseconds to compile the op on all ranks, and to run the op.
std::pair<double, double> compiledOp(const Groups& groups) {
  const int ranks = static_cast<int>(groups.size());
  std::vector<std::shared_ptr<CompiledOp>> ops(groups.size());
  auto start = Clock::now();
  onAll(ranks, [&](Rank rank) {
    auto op = groups[static_cast<std::size_t>(rank)]->compileOp(neighbours(rank, ranks));
    if (!op.isOk()) {
      fail(op.status().message());
    }
    ops[static_cast<std::size_t>(rank)] = *op;
  });
  const double compiled = milliseconds(start);
  start = Clock::now();
  onAll(ranks, [&](Rank rank) {
    std::vector<float> mine(256, static_cast<float>(rank));
    std::vector<std::vector<float>> got(4, std::vector<float>(256));
    std::vector<TensorView> outputs;
    for (auto& each : got) {
      outputs.push_back(TensorView::contiguous(each.data(), DType::kFloat32, {1, 256}));
    }
    const TensorView input = TensorView::contiguous(mine.data(), DType::kFloat32, {1, 256});
    awaitWork(ops[static_cast<std::size_t>(rank)]->run({&input, 1}, outputs));
    for (int i = 0; i < 4; ++i) {
      if (got[static_cast<std::size_t>(i)][255] != static_cast<float>((rank + i + 1) % ranks)) {
        fail("the compiled op gave a wrong row");
      }
    }
  });
  return {compiled, milliseconds(start)};
}

// Joined peers of all ranks.
double linksPerRank(const Groups& groups) {
  std::size_t late = 0;
  for (const auto& group : groups) {
    const std::string text = group->describeTransports();
    constexpr std::string_view kLate = "when an operation first needs it";
    for (std::size_t at = text.find(kLate); at != std::string::npos; at = text.find(kLate, at + 1)) {
      ++late;
    }
  }
  return static_cast<double>(groups.size()) - 1 - static_cast<double>(late) / static_cast<double>(groups.size());
}

void measure(int ranks, const Options& options) {
  CountingStore store;
  Groups groups;
  const Footprint before = footprint();
  const double made = make(&groups, store, ranks, options, "bench");
  const Footprint idle = footprint();
  const double linksMade = linksPerRank(groups);
  const double first = allReduce(groups, 1);
  const double again = allReduce(groups, 1);
  const double linksReduced = linksPerRank(groups);
  const auto [compiled, run] = compiledOp(groups);
  const double linksRun = linksPerRank(groups);
  const Footprint used = footprint();
  const std::size_t in = store.in;
  const std::size_t out = store.out;
  CountingStore furtherStore;
  Groups further;
  const double madeFurther = make(&further, furtherStore, ranks, options, "further");
  fmt::print(
      "{:>6} {:>9.1f} {:>9.1f} {:>10.0f} {:>11.0f} {:>9.0f} {:>9.0f} {:>6.1f} {:>6.1f} {:>6.1f} {:>9.1f} {:>9.1f} "
      "{:>9.1f} {:>8.1f}\n",
      ranks, made, madeFurther, static_cast<double>(in) / ranks, static_cast<double>(out) / ranks,
      (idle.residentKib - before.residentKib) / ranks, (used.residentKib - before.residentKib) / ranks, linksMade,
      linksReduced, linksRun, first, again, compiled, run);
}

int run(std::vector<int> numsOfRanks) {
  auto options = Options::fromEnvironment();
  if (!options.isOk()) {
    fail(options.status().message());
  }
  if (numsOfRanks.empty()) {
    numsOfRanks = {2, 4, 8, 16, 32, 64};
  }
  fmt::print(
      "# per rank: store bytes, KiB resident when made and after all, links when made, after all_reduce, after the "
      "compiled op\n");
  fmt::print("{:>6} {:>9} {:>9} {:>10} {:>11} {:>9} {:>9} {:>6} {:>6} {:>6} {:>9} {:>9} {:>9} {:>8}\n", "ranks",
             "made ms", "again ms", "in B", "out B", "KiB idle", "KiB used", "links", "", "", "4 B 1st", "4 B ms",
             "compile", "run ms");
  for (const int ranks : numsOfRanks) {
    measure(ranks, *options);
  }
  return 0;
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  std::vector<int> numsOfRanks;
  for (int i = 1; i < argc; ++i) {
    numsOfRanks.push_back(std::atoi(argv[i]));
    if (numsOfRanks.back() < 1) {
      shardwire::bench::fail(fmt::format("{} is not a number of ranks", argv[i]));
    }
  }
  return shardwire::bench::run(std::move(numsOfRanks));
}
