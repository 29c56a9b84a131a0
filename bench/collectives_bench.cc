// Collectives between processes of this machine: shardwire with tensors in the shared heap and with ordinary tensors,
// and Open MPI, in turns in one run. Each rank is an MPI process and a member of a shardwire group. Times are medians
// of the slowest rank; bandwidths as defined by nccl-tests. Use an otherwise quiet machine.
#include <fmt/format.h>
#include <mpi.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/bench_options.h"
#include "bench/collective_cases.h"
#include "bench/report.h"
#include "shardwire/stores.h"

namespace shardwire::bench {
namespace {

constexpr std::array<const char*, kNumWays> kWays = {"heap", "ordinary", "mpi"};
// Short calls are timed in rows, back to back: a single call takes less time than the barrier before the call varies.
constexpr std::size_t kRowUpTo = 4096;
constexpr int kCallsInRow = 20;

double slowest(double microseconds) {
  double most = 0;
  MPI_Allreduce(&microseconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return most;
}

double measureOnce(CollectiveCase& one, By by, int iteration, int calls) {
  one.prepare(by, iteration);
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < calls; ++i) {
    one.run(by);
  }
  return slowest((MPI_Wtime() - start) * 1e6) / calls / one.callsPerRun();
}

// The first bytes through each page of a ring pay for the page. They are not what later calls cost.
void touchRings(CollectiveCase& one, By by, int iteration) {
  constexpr std::size_t kTouchedBytes = std::size_t{4} << 20;
  for (std::size_t bytes = 0; one.bytes() > kRowUpTo && bytes < kTouchedBytes; bytes += one.bytes()) {
    one.prepare(by, iteration);
    one.run(by);
  }
}

struct Row {
  std::string name;
  std::size_t bytes;
  std::array<double, kNumWays> microseconds;
};

Row measure(Communicator& group, const std::string& name, std::size_t bytes, const BenchOptions& options) {
  CollectiveCase one(group, name, bytes);
  const int calls = one.bytes() <= kRowUpTo ? kCallsInRow : 1;
  std::array<std::vector<double>, kNumWays> times;
  for (int iteration = -options.warmup; iteration < options.iterations; ++iteration) {
    for (int way = 0; way < kNumWays; ++way) {
      const By by = static_cast<By>(way);
      if (iteration == -options.warmup) {
        touchRings(one, by, iteration);
        one.prepare(by, iteration);
        one.run(by);
        one.check(by, iteration);
      }
      const double took = measureOnce(one, by, iteration, calls);
      if (iteration >= 0) {
        times[static_cast<std::size_t>(way)].push_back(took);
      }
    }
  }
  Row row{name, one.bytes(), {}};
  std::transform(times.begin(), times.end(), row.microseconds.begin(), [](const auto& all) { return median(all); });
  return row;
}

void printHead(int numRanks) {
  fmt::print(
      "# {} ranks on {} cores; out-of-place where there is a list, in place elsewhere; f32, sum; time of the slowest "
      "rank\n",
      numRanks, std::thread::hardware_concurrency());
  fmt::print("# {:<15} {:>10} | {:>10} {:>7} {:>7} {:>6} | {:>10} {:>7} {:>7} {:>6} | {:>10} {:>7} {:>7}\n", "", "",
             "heap", "algbw", "busbw", "of", "ordinary", "algbw", "busbw", "of", "mpi", "algbw", "busbw");
  fmt::print("# {:<15} {:>10} | {:>10} {:>7} {:>7} {:>6} | {:>10} {:>7} {:>7} {:>6} | {:>10} {:>7} {:>7}\n",
             "collective", "bytes", "us", "GB/s", "GB/s", "mpi", "us", "GB/s", "GB/s", "mpi", "us", "GB/s", "GB/s");
}

void print(const Row& row, int numRanks) {
  std::string line = fmt::format("  {:<15} {:>10}", row.name, row.bytes);
  const double mpi = row.microseconds[static_cast<std::size_t>(By::kMpi)];
  for (std::size_t way = 0; way < kNumWays; ++way) {
    const double rate = static_cast<double>(row.bytes) / row.microseconds[way] / 1e3;
    line += fmt::format(" | {:>10.2f} {:>7.2f} {:>7.2f}", row.microseconds[way], rate,
                        rate * CollectiveCase::busFactor(row.name, numRanks));
    line += static_cast<By>(way) == By::kMpi ? "" : fmt::format(" {:>6.2f}", row.microseconds[way] / mpi);
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

// Times of many single calls on rank 0, not of the slowest rank, in blocks of shardwire and of MPI in turns.
std::array<std::vector<double>, 2> measureLatency(Communicator& group, int calls) {
  constexpr int kBlock = 500;
  std::array<std::vector<double>, 2> times;
  float value = 0;
  for (int done = -kBlock; done < calls; done += kBlock) {
    for (const bool isMpi : {false, true}) {
      MPI_Barrier(MPI_COMM_WORLD);
      for (int i = 0; i < kBlock; ++i) {
        value = 1;
        const double start = MPI_Wtime();
        if (isMpi) {
          MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        } else {
          auto work = group.allReduce(TensorView::contiguous(&value, DType::kFloat32, {1}), ReduceOp::kSum);
          if (!work.isOk() || !(*work)->wait().isOk()) {
            MPI_Abort(MPI_COMM_WORLD, 1);
          }
        }
        if (done >= 0) {
          times[isMpi ? 1 : 0].push_back((MPI_Wtime() - start) * 1e6);
        }
      }
    }
  }
  return times;
}

double cpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Share of a core that rank 0 uses while waiting two seconds in an all_reduce for the other ranks, which sleep.
double measureIdleWait(Communicator& group, bool isMpi) {
  float value = 1;
  MPI_Barrier(MPI_COMM_WORLD);
  if (group.rank() != 0) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
  const double cpu = cpuSeconds(), start = MPI_Wtime();
  if (isMpi) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (auto work = group.allReduce(TensorView::contiguous(&value, DType::kFloat32, {1}), ReduceOp::kSum);
             !work.isOk() || !(*work)->wait().isOk()) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return (cpuSeconds() - cpu) / (MPI_Wtime() - start);
}

nlohmann::ordered_json toJson(const std::vector<Row>& rows, int numRanks) {
  nlohmann::ordered_json all = {
      {"bench", "collectives"}, {"ranks", numRanks}, {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) {
    nlohmann::ordered_json one = {{"collective", row.name}, {"bytes", row.bytes}};
    for (std::size_t way = 0; way < kNumWays; ++way) {
      one[kWays[way]] = row.microseconds[way];
    }
    all["rows"].push_back(one);
  }
  return all;
}

void runAll(Communicator& group, const BenchOptions& options) {
  const bool prints = group.rank() == 0 && !options.json;
  const int n = group.worldSize();
  std::vector<Row> rows;
  if (prints) {
    printHead(n);
  }
  for (const std::string& name : CollectiveCase::names()) {
    if (!options.wants(name) || (name == "send_recv" && n < 2)) {
      continue;
    }
    for (std::size_t bytes = name == "barrier" ? options.maxBytes : options.minBytes; bytes <= options.maxBytes;
         bytes *= 4) {
      rows.push_back(measure(group, name, bytes, options));
      if (prints) {
        print(rows.back(), n);
      }
    }
  }
  nlohmann::ordered_json all = toJson(rows, n);
  if (options.wants("latency")) {
    auto times = measureLatency(group, options.latencyIterations);
    const char* names[] = {"shardwire", "mpi"};
    for (std::size_t i = 0; i < 2; ++i) {
      std::sort(times[i].begin(), times[i].end());
      const double middle = times[i][times[i].size() / 2], late = times[i][times[i].size() * 99 / 100];
      const double idle = measureIdleWait(group, i == 1);
      all["latency"][names[i]] = {{"p50_us", middle}, {"p99_us", late}, {"idle_wait_cores", idle}};
      if (prints) {
        fmt::print(
            "# all_reduce of 4 B, {:<9}: p50 {:.2f} us, p99 {:.2f} us; a wait of 2 s for sleeping ranks uses {:.4f} of "
            "a core\n",
            names[i], middle, late, idle);
      }
    }
  }
  if (group.rank() == 0 && options.json) {
    fmt::print("{}\n", all.dump());
  }
}

int runRank(int argc, char** argv) {
  int threads = 0, rank = 0, numRanks = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &threads);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &numRanks);
  const BenchOptions options =
      parseBenchOptions(argc, argv, "shardwire and Open MPI: collectives between local processes");
  char folder[] = "/tmp/shardwire-bench-XXXXXX";
  if (rank == 0 && ::mkdtemp(folder) == nullptr) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Bcast(folder, sizeof(folder), MPI_CHAR, 0, MPI_COMM_WORLD);
  FileStore store(folder);
  const Result<Options> environment = Options::fromEnvironment();
  auto group =
      environment.isOk() ? Communicator::create(store, rank, numRanks, *environment, "bench") : environment.status();
  if (!group.isOk()) {
    fmt::print(stderr, "collectives_bench: {}\n", group.status().message());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  runAll(**group, options);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    std::filesystem::remove_all(folder);
  }
  MPI_Finalize();
  return 0;
}

// Without mpirun the program starts again under mpirun.
int startRanks(int argc, char** argv) {
  const BenchOptions options =
      parseBenchOptions(argc, argv, "shardwire and Open MPI: collectives between local processes");
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(options.ranks), "--oversubscribe"};
  if (::geteuid() == 0) {
    words.emplace_back("--allow-run-as-root");
  }
  words.insert(words.end(), argv, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
  fmt::print(stderr, "collectives_bench: there is no mpirun (openmpi-bin)\n");
  return 1;
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  return std::getenv("OMPI_COMM_WORLD_RANK") == nullptr ? shardwire::bench::startRanks(argc, argv)
                                                        : shardwire::bench::runRank(argc, argv);
}
