// Copies, casts and reductions of one process, beside memcpy in the same run. Two tables:
//
// - alignments: each kernel at all 64 distances of its destination (or of its second source) from its first source, in
//   steps of a line modulo a page, from sizes within L1 to far past L3, on every instruction set. A row has the worst
//   distance, once as a ratio to memcpy at this distance, once as a ratio to the kernel's own median.
// - dtypes: each reduction's bytes per second as a ratio to float32's sum of as many addends.
//
// All sizes count the bytes that are read and written, so a ratio of rates is a ratio of times. Calls that are compared
// take turns, and each time is the least of some rounds. A cell that looks bad is measured again before it counts:
// another program's load comes and goes, the kernel's weakness stays.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "backend/communicator/kernel_choices.h"
#include "ops/boxes/cast_box.h"
#include "ops/boxes/copy_box.h"
#include "ops/boxes/reduce_box.h"
#include "ops/reduce/isa_kernels.h"

namespace shardwire::bench {
namespace {

using namespace internal;

constexpr std::size_t kPage = 4096, kLine = 64;
constexpr int kNumOffsets = 64;
constexpr std::size_t kMostAddends = 8;
constexpr int kRoundsAgain = 6;  // for a cell that looks bad

// Limits of --assert, all ratios within one run.
constexpr double kLeastOfMemcpy = 0.8;
constexpr double kLeastOfMedian = 0.5;
constexpr double kLeastOfFloat32 = 0.9;

struct Options {
  std::vector<std::string> only;  // parts of names
  bool dtypes = false;
  bool asserts = false;
  bool brief = false;
  int rounds = 3;
};

// Memory for all streams of a call, written once. Each stream begins on a page and has two pages to move in.
class Streams {
 public:
  explicit Streams(std::size_t totalBytes) : bytes_(2 * totalBytes + 4 * (kMostAddends + 1) * kPage) {
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      fmt::print(stderr, "kernels_copy_bench: no memory for {} bytes\n", bytes_);
      std::exit(1);
    }
    memory_ = static_cast<std::byte*>(mapped);
    std::memset(memory_, 0x3C, bytes_);  // an ordinary number in all dtypes, whose powers are ordinary numbers, too
  }
  ~Streams() { ::munmap(memory_, bytes_); }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // The place for the next stream of `bytes`; `from` goes on behind it.
  std::byte* take(std::size_t* from, std::size_t bytes) const {
    std::byte* place = memory_ + *from;
    *from += (bytes + kPage - 1) / kPage * kPage + 2 * kPage;
    return place;
  }

 private:
  std::size_t bytes_;
  std::byte* memory_;
};

struct Place {
  std::byte* dst;
  std::vector<std::byte*> sources;
  std::size_t numElems;
};

// One kernel as plans call it.
struct Kernel {
  std::string name;
  std::size_t dstBytes = 1;  // of one element
  std::size_t srcBytes = 1;
  std::size_t numSources = 1;
  std::function<void(const Place&)> run;
  bool movesSource = false;  // not the destination
  bool isCopy = false;

  // Where a call that moves `total` bytes reads and writes.
  Place place(const Streams& streams, std::size_t total, std::size_t offset) const {
    Place place;
    place.numElems = total / (dstBytes + numSources * srcBytes) / 64 * 64;
    std::size_t at = 0;
    for (std::size_t i = 0; i < numSources; ++i) {
      place.sources.push_back(streams.take(&at, place.numElems * srcBytes) + (movesSource && i == 1 ? offset : 0));
    }
    place.dst = streams.take(&at, place.numElems * dstBytes) + (movesSource ? 0 : offset);
    return place;
  }
};

StridedBox contiguous(std::byte* bytes, std::size_t elemBytes) {
  return {bytes, {static_cast<std::int64_t>(elemBytes)}};
}

Kernel memcpyKernel() {
  Kernel kernel{"memcpy", 1, 1, 1, {}, false, true};
  kernel.run = [](const Place& place) {
    std::memcpy(place.dst, place.sources[0], place.numElems);
    asm volatile("" : : "r"(place.dst) : "memory");
  };
  return kernel;
}

Kernel copyKernel() {
  Kernel kernel{"copy", 1, 1, 1, {}, false, true};
  kernel.run = [](const Place& place) {
    copyBox(contiguous(place.dst, 1), contiguous(place.sources[0], 1), {static_cast<std::int64_t>(place.numElems)}, 1);
  };
  return kernel;
}

Kernel castKernel(DType from, DType to) {
  Kernel kernel{fmt::format("cast {} to {}", dtypeName(from), dtypeName(to)), elementBytes(to), elementBytes(from)};
  kernel.run = [=](const Place& place) {
    castBox(contiguous(place.dst, elementBytes(to)), to, contiguous(place.sources[0], elementBytes(from)), from,
            {static_cast<std::int64_t>(place.numElems)});
  };
  return kernel;
}

Kernel reduceKernel(DType dtype, ReduceOp op, std::size_t numSources) {
  const std::size_t elem = elementBytes(dtype);
  Kernel kernel{fmt::format("{} of {} {}", reduceOpName(op), numSources, dtypeName(dtype)), elem, elem, numSources};
  kernel.run = [=](const Place& place) {
    const std::byte* sources[kMostAddends];
    std::copy(place.sources.begin(), place.sources.end(), sources);
    reduceContiguous(place.dst, {sources, place.sources.size()}, place.numElems, dtype, op);
  };
  return kernel;
}

std::vector<Kernel> alignmentKernels() {
  std::vector<Kernel> kernels = {copyKernel(),
                                 castKernel(DType::kFloat32, DType::kBFloat16),
                                 castKernel(DType::kBFloat16, DType::kFloat32),
                                 castKernel(DType::kFloat32, DType::kFloat16),
                                 castKernel(DType::kFloat16, DType::kFloat32),
                                 castKernel(DType::kFloat16, DType::kBFloat16),
                                 castKernel(DType::kFloat64, DType::kFloat32),
                                 castKernel(DType::kFloat32, DType::kFloat64),
                                 castKernel(DType::kFloat32, DType::kFloat8E4M3FN),
                                 castKernel(DType::kFloat8E4M3FN, DType::kFloat32)};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3FN,
                            DType::kInt8, DType::kInt32, DType::kComplex64}) {
    kernels.push_back(reduceKernel(dtype, ReduceOp::kSum, 2));
  }
  kernels.push_back(reduceKernel(DType::kFloat32, ReduceOp::kSum, 4));
  kernels.push_back(reduceKernel(DType::kBFloat16, ReduceOp::kSum, 4));
  kernels.push_back(reduceKernel(DType::kFloat32, ReduceOp::kSum, 8));
  for (const std::size_t numSources : {2, 4}) {
    Kernel apart = reduceKernel(DType::kFloat32, ReduceOp::kSum, numSources);
    apart.name += ", sources apart";
    apart.movesSource = true;
    kernels.push_back(apart);
  }
  return kernels;
}

struct Size {
  const char* name;
  std::size_t bytes;
};

std::vector<Size> sizesHere(bool dtypes) {
  const long l3 = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const std::size_t far = std::clamp<std::size_t>(2 * static_cast<std::size_t>(std::max(l3, 0L)), std::size_t{64} << 20,
                                                  std::size_t{256} << 20);
  std::vector<Size> sizes = {
      {"L1", std::size_t{24} << 10}, {"L2", std::size_t{384} << 10}, {"L3", std::size_t{6} << 20}, {"memory", far}};
  if (dtypes) {
    sizes = {sizes[1], sizes[3]};
  }
  return sizes;
}

// As the first group of a process chooses, for each instruction set.
std::array<RowStore, kNumIsas> largeStores{};

void chooseLargeStores(const std::vector<Isa>& isas) {
  for (const Isa isa : isas) {
    useKernelsForTest(isa);
    const LargeStoreTimes times = measureLargeStores();
    useLargeStore(largeStores[static_cast<std::size_t>(isa)] = fastestLargeStore(times));
    fmt::print("{}, 128 KiB, us: ordinary stores {:.1f}, one stream past the caches {:.1f}, two {:.1f}: {} chosen\n",
               kernelsOf(isa)->name, static_cast<double>(times.ahead.count()) * 1e-3,
               static_cast<double>(times.stream.count()) * 1e-3, static_cast<double>(times.pair.count()) * 1e-3,
               largeStore() == RowStore::kAhead    ? "ordinary"
               : largeStore() == RowStore::kStream ? "one"
                                                   : "two");
  }
}

// A kernel on one instruction set at one place, with the least time so far.
struct Cell {
  const Kernel* kernel;
  Isa isa;
  Place place;
  double seconds = std::numeric_limits<double>::infinity();

  void measure(int numCalls) {
    useKernelsForTest(isa);
    useLargeStore(largeStores[static_cast<std::size_t>(isa)]);
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < numCalls; ++call) {
      kernel->run(place);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds = std::min(seconds, took.count() / numCalls);
  }
};

// So many calls take about 30 us: the clock costs nothing, and a slice of the scheduler rarely ends within.
int numCallsOf(std::size_t bytes) {
  return static_cast<int>(std::max<std::size_t>(1, (std::size_t{1} << 20) / bytes));
}

void measureInTurns(std::vector<Cell>& cells, int rounds, int numCalls) {
  for (int round = 0; round < rounds; ++round) {
    for (Cell& cell : cells) {
      cell.measure(numCalls);
    }
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::vector<Isa> isasToMeasure() {
  const char* wanted = std::getenv("SHARDWIRE_ISA");
  std::vector<Isa> isas;
  for (int i = 0; i < kNumIsas; ++i) {
    const KernelTable* table = kernelsOf(static_cast<Isa>(i));
    if (table != nullptr && (wanted == nullptr || std::string(wanted) == table->name)) {
      isas.push_back(static_cast<Isa>(i));
    }
  }
  if (isas.empty()) {
    fmt::print(stderr, "kernels_copy_bench: no kernels for SHARDWIRE_ISA={} here\n", wanted);
    std::exit(2);
  }
  return isas;
}

bool isWanted(const std::string& name, const Options& options) {
  return options.only.empty() || std::any_of(options.only.begin(), options.only.end(), [&](const std::string& part) {
           return name.find(part) != std::string::npos;
         });
}

// All distances of one kernel at one size. cells[offset] has memcpy first, then the kernel on each instruction set.
class Alignments {
 public:
  Alignments(const Kernel& kernel, const Kernel& reference, Size size, const std::vector<Isa>& isas,
             const Streams& streams, const Options& options)
      : kernel_(kernel), size_(size), isas_(isas) {
    const int step = options.brief ? 16 : 1;
    for (int offset = 0; offset < kNumOffsets; offset += step) {
      const std::size_t bytes = static_cast<std::size_t>(offset) * kLine;
      std::vector<Cell>& row = cells_.emplace_back();
      row.push_back({&reference, isas[0], reference.place(streams, size.bytes, bytes)});
      for (const Isa isa : isas) {
        row.push_back({&kernel, isa, kernel.place(streams, size.bytes, bytes)});
      }
      offsets_.push_back(bytes);
    }
    const int numCalls = numCallsOf(size.bytes);
    const int rounds = size.bytes > (std::size_t{16} << 20) ? std::max(1, options.rounds - 2) : options.rounds;
    for (int round = 0; round < rounds; ++round) {
      for (std::vector<Cell>& row : cells_) {
        measureInTurns(row, 1, numCalls);
      }
    }
    for (std::size_t at = 0; at < cells_.size(); ++at) {
      for (int again = 0; again < kRoundsAgain && isBad(at); ++again) {
        measureInTurns(cells_[at], 1, numCalls);
      }
    }
  }

  // Prints a line for each instruction set; returns how many broke a limit.
  int print() const {
    int numBroken = 0;
    for (std::size_t i = 0; i < isas_.size(); ++i) {
      const double middle = medianOf(i);
      std::size_t ofMemcpy = 0, ofMedian = 0;
      std::vector<double> ratios;
      for (std::size_t at = 0; at < cells_.size(); ++at) {
        ratios.push_back(ratioOf(at, i));
        ofMemcpy = ratioOf(at, i) < ratioOf(ofMemcpy, i) ? at : ofMemcpy;
        ofMedian = cells_[at][i + 1].seconds > cells_[ofMedian][i + 1].seconds ? at : ofMedian;
      }
      const double toMedian = middle / cells_[ofMedian][i + 1].seconds;
      const bool isBroken = (isHeldToMemcpy() && ratios[ofMemcpy] < kLeastOfMemcpy) || toMedian < kLeastOfMedian;
      fmt::print("{:<34} {:<8} {:<7} {:>6.1f} | {:>6.2f} {:>6.2f} @{:<4} | {:>6.2f} @{:<4}{}\n", kernel_.name,
                 kernelsOf(isas_[i])->name, size_.name, static_cast<double>(size_.bytes) / middle * 1e-9,
                 median(ratios), ratios[ofMemcpy], offsets_[ofMemcpy], toMedian, offsets_[ofMedian],
                 isBroken ? "  BROKEN" : "");
      numBroken += isBroken ? 1 : 0;
    }
    std::fflush(stdout);
    return numBroken;
  }

 private:
  // Within the caches a cast or reduction costs its arithmetic, so memcpy's rate is the limit past the caches only.
  bool isHeldToMemcpy() const { return kernel_.isCopy || std::string_view(size_.name) == "memory"; }

  double ratioOf(std::size_t at, std::size_t isa) const { return cells_[at][0].seconds / cells_[at][isa + 1].seconds; }
  double medianOf(std::size_t isa) const {
    std::vector<double> seconds;
    for (const std::vector<Cell>& row : cells_) {
      seconds.push_back(row[isa + 1].seconds);
    }
    return median(std::move(seconds));
  }
  bool isBad(std::size_t at) const {
    for (std::size_t i = 0; i < isas_.size(); ++i) {
      if ((isHeldToMemcpy() && ratioOf(at, i) < kLeastOfMemcpy) ||
          medianOf(i) / cells_[at][i + 1].seconds < kLeastOfMedian) {
        return true;
      }
    }
    return false;
  }

  const Kernel& kernel_;
  const Size size_;
  const std::vector<Isa>& isas_;
  std::vector<std::vector<Cell>> cells_;
  std::vector<std::size_t> offsets_;
};

int runAlignments(const Options& options) {
  const std::vector<Size> sizes = sizesHere(false);
  const Streams streams(options.brief ? sizes[1].bytes : sizes.back().bytes);
  const std::vector<Isa> isas = isasToMeasure();
  const Kernel reference = memcpyKernel();
  fmt::print(
      "GB/s are bytes read and written, at the median of the distances. @: bytes above the source modulo 4,096\n"
      "{:<34} {:<8} {:<7} {:>6} | of memcpy: median, worst | worst of own median\n",
      "kernel", "isa", "size", "GB/s");
  int numBroken = 0;
  for (const Kernel& kernel : alignmentKernels()) {
    for (const Size& size : sizes) {
      if (isWanted(kernel.name, options) && (!options.brief || size.bytes <= sizes[1].bytes)) {
        numBroken += Alignments(kernel, reference, size, isas, streams, options).print();
      }
    }
  }
  return numBroken;
}

int printDtypes(const std::vector<Kernel>& kernels, const Kernel& reference, const Kernel& copy, Size size, Isa isa,
                const Streams& streams, int rounds) {
  int numBroken = 0;
  const int numCalls = numCallsOf(size.bytes);
  for (const Kernel& kernel : kernels) {
    std::vector<Cell> cells = {{&copy, isa, copy.place(streams, size.bytes, 0)},
                               {&reference, isa, reference.place(streams, size.bytes, 0)},
                               {&kernel, isa, kernel.place(streams, size.bytes, 0)}};
    measureInTurns(cells, rounds, numCalls);
    for (int again = 0; again < kRoundsAgain && cells[1].seconds < kLeastOfFloat32 * cells[2].seconds; ++again) {
      measureInTurns(cells, 1, numCalls);
    }
    const double ratio = cells[1].seconds / cells[2].seconds;
    numBroken += ratio < kLeastOfFloat32 ? 1 : 0;
    fmt::print("{:<34} {:<8} {:<7} {:>6.1f} | {:>5.2f} | {:>5.2f}{}\n", kernel.name, kernelsOf(isa)->name, size.name,
               static_cast<double>(size.bytes) / cells[2].seconds * 1e-9, ratio, cells[0].seconds / cells[2].seconds,
               ratio < kLeastOfFloat32 ? "  BROKEN" : "");
    std::fflush(stdout);
  }
  return numBroken;
}

int runDtypes(const Options& options) {
  const std::vector<Size> sizes = sizesHere(true);
  const Streams streams(sizes.back().bytes);
  const Kernel copy = memcpyKernel();
  chooseLargeStores(isasToMeasure());
  fmt::print("{:<34} {:<8} {:<7} {:>6} | of float32's sum | of memcpy\n", "kernel", "isa", "size", "GB/s");
  int numBroken = 0;
  for (const std::size_t numSources : {2, 4, 8}) {
    const Kernel reference = reduceKernel(DType::kFloat32, ReduceOp::kSum, numSources);
    std::vector<Kernel> kernels;
    for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
      for (int op = 1; op < kNumReduceOps; ++op) {
        if (supportsReduction(static_cast<DType>(dtype), static_cast<ReduceOp>(op))) {
          Kernel kernel = reduceKernel(static_cast<DType>(dtype), static_cast<ReduceOp>(op), numSources);
          if (isWanted(kernel.name, options)) {
            kernels.push_back(std::move(kernel));
          }
        }
      }
    }
    for (const Size& size : sizes) {
      for (const Isa isa : isasToMeasure()) {
        if (!options.brief || size.bytes < sizes.back().bytes) {
          numBroken += printDtypes(kernels, reference, copy, size, isa, streams, options.rounds);
        }
      }
    }
  }
  return numBroken;
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  shardwire::bench::Options options;
  CLI::App app{
      "Copies, casts and reductions beside memcpy. SHARDWIRE_ISA=baseline|avx2|avx512|neon measures this one alone."};
  app.add_option("--only", options.only, "parts of names of kernels, such as 'cast' or 'sum of 2'")->delimiter(';');
  app.add_flag("--dtypes", options.dtypes, "every reduction beside float32's, instead of the alignments");
  app.add_flag("--assert", options.asserts, "end with status 1 when a ratio is below its limit");
  app.add_flag("--brief", options.brief, "few distances, within the caches: only to see that it runs");
  app.add_option("--rounds", options.rounds, "rounds of each cell")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const int numBroken =
      options.dtypes ? shardwire::bench::runDtypes(options) : shardwire::bench::runAlignments(options);
  fmt::print("{} rows below a limit\n", numBroken);
  return options.asserts && numBroken > 0 ? 1 : 0;
}
