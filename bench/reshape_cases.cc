// Each case is three functions: prepare() rewrites the tensors, `timed` moves the bytes, verify() compares the output
// with the expected values. First come the cases inside one rank (memcpy and strided copies), then the compiled ops
// over heap tensors and ordinary tensors. All cases take turns in every iteration; the last iteration is verified.
#include "bench/reshape_cases.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

#include "backend/memory/shared_heap.h"
#include "ops/boxes/copy_box.h"

namespace shardwire::bench {

namespace {

using internal::StridedBox;

// Where the extent is cut for `part` of `numParts`, as torch.chunk cuts.
struct Share {
  std::int64_t from;
  std::int64_t extent;
};
Share shareOf(std::int64_t extent, int numParts, int part) {
  const std::int64_t chunk = (extent + numParts - 1) / numParts;
  const std::int64_t from = std::min(extent, chunk * part);
  return {from, std::min(extent - from, chunk)};
}

enum class Place { kHeap, kOrdinary };

// Lives until the process ends.
float* allocate(Place place, std::int64_t elems) {
  const std::size_t bytes = static_cast<std::size_t>(elems) * sizeof(float);
  if (place == Place::kHeap) {
    auto heap = internal::SharedHeap::instance();
    if (!heap.isOk()) {
      fail(heap.status().message());
    }
    auto memory = (*heap)->allocate(bytes);
    if (!memory.isOk()) {
      fail(memory.status().message());
    }
    return static_cast<float*>(*memory);
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fail("no memory for a tensor");
  }
  return static_cast<float*>(memory);
}

// Element `index` of the global tensor in one iteration; small whole numbers, so that sums are exact.
float valueAt(std::int64_t index, int iteration) {
  return static_cast<float>((index + iteration) & 0xFFFF);
}

struct Case {
  std::string name;
  std::function<void(int iteration)> prepare;
  std::function<void()> timed;
  std::function<void(int iteration)> verify;
};

// One rank's tensors and the ops over them.
class ReshapeCases {
 public:
  ReshapeCases(BenchRanks& ranks, Communicator& group, const BenchOptions& options)
      : ranks_(ranks),
        group_(group),
        options_(options),
        rows_(shareOf(options.rows, ranks.size(), ranks.rank())),
        columns_(shareOf(options.columns, ranks.size(), ranks.rank())) {}

  std::vector<Case> cases() {
    std::vector<Case> all;
    const auto add = [&](const std::string& name, auto&& make) {
      if (options_.wants(name)) {
        all.push_back(make(name));
      }
    };
    add("memcpy", [&](const std::string& name) { return localCase(name, &ReshapeCases::copyFlat); });
    add("local_memcpy_runs", [&](const std::string& name) { return localCase(name, &ReshapeCases::copyRuns); });
    add("local_copy", [&](const std::string& name) { return localCase(name, &ReshapeCases::copyBoxes); });
    for (const Place place : {Place::kHeap, Place::kOrdinary}) {
      const std::string suffix = place == Place::kHeap ? "heap" : "ordinary";
      add(suffix, [&](const std::string& name) { return reshapeCase(name, place); });
      add("partial_none_" + suffix, [&](const std::string& name) { return partialCase(name, place, ReduceOp::kNone); });
      add("partial_sum_" + suffix, [&](const std::string& name) { return partialCase(name, place, ReduceOp::kSum); });
    }
    return all;
  }

  std::uint64_t outputBytes() const {
    return static_cast<std::uint64_t>(options_.rows * columns_.extent) * sizeof(float);
  }

 private:
  struct Tensors {
    float* in = nullptr;      // my rows
    float* addend = nullptr;  // the whole tensor, a Partial
    float* out = nullptr;     // my columns
  };

  Tensors& tensors(Place place) {
    Tensors& made = tensors_[place];
    if (made.out == nullptr) {
      made.in = allocate(place, rows_.extent * options_.columns);
      made.out = allocate(place, options_.rows * columns_.extent);
    }
    return made;
  }

  void fill(float* tensor, Share rows, int iteration) const {
    for (std::int64_t i = 0; i < rows.extent * options_.columns; ++i) {
      tensor[i] = valueAt(rows.from * options_.columns + i, iteration);
    }
  }
  void scribble(float* out) const { std::memset(out, 0xFF, outputBytes()); }

  void check(const std::string& name, const float* out, int iteration, float factor) const {
    for (std::int64_t row = 0; row < options_.rows; ++row) {
      for (std::int64_t column = 0; column < columns_.extent; ++column) {
        const float expected = factor * valueAt(row * options_.columns + columns_.from + column, iteration);
        if (const float got = out[row * columns_.extent + column]; got != expected) {
          fail(fmt::format("{}: rank {} has {} at [{}, {}], not {}", name, ranks_.rank(), got, row, column, expected));
        }
      }
    }
  }

  // Copies inside one rank: as many bytes, in the shape that the reshape has.
  Case localCase(const std::string& name, void (ReshapeCases::*copy)()) {
    Tensors& mine = tensors(Place::kOrdinary);
    return {name,
            [this, &mine](int iteration) {
              fill(mine.in, rows_, iteration);
              scribble(mine.out);
            },
            [this, copy] { (this->*copy)(); }, [](int) {}};
  }
  void copyFlat() {
    const Tensors& mine = tensors_[Place::kOrdinary];
    std::memcpy(
        mine.out, mine.in,
        static_cast<std::size_t>(std::min(rows_.extent * options_.columns, options_.rows * columns_.extent)) * 4);
  }
  template <typename Copy>
  void forEachBox(Copy&& copy) {
    const Tensors& mine = tensors_[Place::kOrdinary];
    for (int part = 0; part < ranks_.size(); ++part) {
      const Share to = shareOf(options_.rows, ranks_.size(), part),
                  from = shareOf(options_.columns, ranks_.size(), part);
      const Dims shape{std::min(to.extent, rows_.extent), std::min(from.extent, columns_.extent)};
      copy(mine.out + to.from * columns_.extent, mine.in + from.from, shape);
    }
  }
  void copyRuns() {
    forEachBox([this](float* dst, const float* src, const Dims& shape) {
      for (std::int64_t row = 0; row < shape[0]; ++row) {
        std::memcpy(dst + row * columns_.extent, src + row * options_.columns,
                    static_cast<std::size_t>(shape[1]) * sizeof(float));
      }
    });
  }
  void copyBoxes() {
    forEachBox([this](float* dst, float* src, const Dims& shape) {
      const StridedBox to{reinterpret_cast<std::byte*>(dst), {columns_.extent * 4, 4}};
      const StridedBox from{reinterpret_cast<std::byte*>(src), {options_.columns * 4, 4}};
      internal::copyBox(to, from, shape, sizeof(float));
    });
  }

  std::shared_ptr<BoundOp> bindOp(const LocalSpec& spec, float* in, float* out) {
    auto op = group_.compileOp(spec);
    if (!op.isOk()) {
      fail(op.status().message());
    }
    const TensorView inputs[] = {TensorView::contiguous(in, DType::kFloat32, spec.inputs[0].localShape)};
    const TensorView outputs[] = {TensorView::contiguous(out, DType::kFloat32, spec.outputs[0].localShape)};
    auto bound = (*op)->bind(inputs, outputs);
    if (!bound.isOk()) {
      fail(bound.status().message());
    }
    return std::move(*bound);
  }

  static void runAndWait(BoundOp& op) {
    auto work = op.run();
    const Status status = work.isOk() ? (*work)->wait() : work.status();
    if (!status.isOk()) {
      fail(status.message());
    }
  }

  LocalSpec spec(Share inRows, ReduceOp reduction) const {
    const Dims inShape{inRows.extent, options_.columns}, outShape{options_.rows, columns_.extent};
    LocalSpec spec;
    spec.tensors.push_back({"", Dims{options_.rows, options_.columns}, DType::kFloat32, reduction});
    spec.inputs.push_back({0, inShape, {{{{inRows.from, 0}, inShape}, {0, 0}}}, 0});
    spec.outputs.push_back({0, outShape, {{{{0, columns_.from}, outShape}, {0, 0}}}, 0});
    return spec;
  }

  Case reshapeCase(const std::string& name, Place place) {
    Tensors& mine = tensors(place);
    auto op = bindOp(spec(rows_, ReduceOp::kNone), mine.in, mine.out);
    return {name,
            [this, &mine](int iteration) {
              fill(mine.in, rows_, iteration);
              scribble(mine.out);
            },
            [op] { runAndWait(*op); }, [this, name, &mine](int iteration) { check(name, mine.out, iteration, 1); }};
  }

  // Every rank holds the whole tensor. Without a reduction the last rank's counts.
  Case partialCase(const std::string& name, Place place, ReduceOp reduction) {
    Tensors& mine = tensors(place);
    if (mine.addend == nullptr) {
      mine.addend = allocate(place, options_.rows * options_.columns);
    }
    const Share all{0, options_.rows};
    auto op = bindOp(spec(all, reduction), mine.addend, mine.out);
    const float factor = reduction == ReduceOp::kSum ? static_cast<float>(ranks_.size()) : 1.0f;
    return {name,
            [this, all, &mine](int iteration) {
              fill(mine.addend, all, iteration);
              scribble(mine.out);
            },
            [op] { runAndWait(*op); },
            [this, name, factor, &mine](int iteration) { check(name, mine.out, iteration, factor); }};
  }

  BenchRanks& ranks_;
  Communicator& group_;
  const BenchOptions& options_;
  const Share rows_;
  const Share columns_;
  std::map<Place, Tensors> tensors_;
};

}  // namespace

void runReshapeCases(BenchRanks& ranks, Communicator& group, const BenchOptions& options, Report& report) {
  ReshapeCases made(ranks, group, options);
  const std::vector<Case> cases = made.cases();
  const std::size_t first = report.cases.size();
  for (const Case& one : cases) {
    report.cases.push_back({one.name, made.outputBytes(), {}});
  }
  for (int iteration = -options.warmup; iteration < options.iterations; ++iteration) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double took = ranks.measure(
          0, 1, [&](int) { cases[i].prepare(iteration); }, cases[i].timed)[0];
      if (iteration >= 0) {
        report.cases[first + i].microseconds.push_back(took);
      }
      if (iteration == options.iterations - 1) {
        cases[i].verify(iteration);
      }
    }
  }
}

}  // namespace shardwire::bench
