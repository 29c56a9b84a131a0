// compileOp and runs of compiled ops between real ranks against the naive model: random specs, over every data path,
// with strided tensors, bound and not, one and two runs in flight. Ranks are threads, for speed, or processes made by
// mpirun; the groups stay for all cases of one path. SHARDWIRE_ORACLE_CASES: how many cases (default 20000).
// SHARDWIRE_ORACLE_SEED: the first seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "backend/memory/shared_heap.h"
#include "shardwire/communicator.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/launched_ranks.h"
#include "tests/support/naive_model.h"
#include "tests/support/random.h"
#include "tests/support/random_spec.h"

namespace shardwire::testing {
namespace {

constexpr int kMaxRanks = 6;

// A local tensor in separate memory: contiguous, or with permuted dimensions and gaps, in the shared heap or not.
class LocalBuffer {
 public:
  LocalBuffer(const Dims& shape, DType dtype, std::uint64_t variety)
      : dtype_(dtype), shape_(shape), strides_(contiguousStrides(shape)) {
    std::int64_t last = 0;
    if (variety % 3 == 1) {  // first dimension innermost, padded
      std::int64_t stride = 1 + static_cast<std::int64_t>(variety % 2);
      for (int d = 0; d < shape.size(); ++d) {
        strides_[d] = stride;
        stride *= std::max<std::int64_t>(1, shape[d]) + 1;
      }
    }
    for (int d = 0; d < shape.size(); ++d) {
      last += std::max<std::int64_t>(0, shape[d] - 1) * strides_[d];
    }
    bytes_ = static_cast<std::size_t>(last + 1) * elementBytes(dtype);
    if (variety % 5 < 2) {
      internal::SharedHeap* heap = internal::SharedHeap::instance().value();
      memory_ = {static_cast<std::byte*>(heap->allocate(bytes_).value()),
                 [heap](std::byte* block) { heap->free(block); }};
    } else {
      memory_ = {new std::byte[bytes_], [](std::byte* block) { delete[] block; }};
    }
  }

  TensorView view() const { return {memory_.get(), dtype_, shape_, strides_}; }
  void load(const Bytes& packed) {
    std::memset(memory_.get(), static_cast<int>(kUntouched), bytes_);
    const std::size_t size = elementBytes(dtype_);
    forEachElement(
        [&](std::size_t i, std::size_t at) { std::memcpy(memory_.get() + at * size, packed.data() + i * size, size); });
  }
  Bytes save() const {
    Bytes packed(static_cast<std::size_t>(numElements(shape_)) * elementBytes(dtype_));
    const std::size_t size = elementBytes(dtype_);
    forEachElement(
        [&](std::size_t i, std::size_t at) { std::memcpy(packed.data() + i * size, memory_.get() + at * size, size); });
    return packed;
  }

 private:
  // visit(row-major index, offset in elements); a plain loop, which trusts no code of shardwire.
  template <typename Visit>
  void forEachElement(Visit visit) const {
    const auto count = static_cast<std::size_t>(numElements(shape_));
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t rest = i;
      std::size_t at = 0;
      for (int d = shape_.size() - 1; d >= 0; --d) {
        at += rest % static_cast<std::size_t>(shape_[d]) * static_cast<std::size_t>(strides_[d]);
        rest /= static_cast<std::size_t>(shape_[d]);
      }
      visit(i, at);
    }
  }

  DType dtype_;
  Dims shape_;
  Dims strides_;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte> memory_;
};

struct Tensors {
  std::vector<LocalBuffer> inputs;
  std::vector<LocalBuffer> outputs;
  std::vector<TensorView> inputViews;
  std::vector<TensorView> outputViews;

  Tensors(const CompiledOp& op, const std::vector<Bytes>& in, const std::vector<Bytes>& out, std::uint64_t seed) {
    const auto fill = [&](const std::vector<LocalTensor>& locals, const std::vector<Bytes>& packed,
                          std::vector<LocalBuffer>& buffers, std::vector<TensorView>& views, bool areOutputs) {
      for (std::size_t i = 0; i < locals.size(); ++i) {
        const TensorDecl& tensor = op.tensors()[static_cast<std::size_t>(locals[i].tensor)];
        buffers.emplace_back(locals[i].localShape, *(areOutputs ? tensor.outputDtype : tensor.dtype), seed++);
        buffers.back().load(packed[i]);
        views.push_back(buffers.back().view());
      }
    };
    fill(op.inputs(), in, inputs, inputViews, false);
    fill(op.outputs(), out, outputs, outputViews, true);
  }
  std::vector<Bytes> result() const {
    std::vector<Bytes> all;
    for (const LocalBuffer& output : outputs) {
      all.push_back(output.save());
    }
    return all;
  }
};

// The data of the current case for all ranks; made between two barriers by rank 0, or by each rank where the ranks
// share no memory.
struct Current {
  RandomCase randomCase;
  RankBytes inputs;
  RankBytes blank;
  RankBytes expected;
};

class Oracle {
 public:
  Oracle(const Options& options, int numHosts) : options_(options), numHosts_(numHosts) {
    for (int n = 0; n <= kMaxRanks; ++n) {
      stores_.push_back(makeStore());
    }
  }

  void run(std::uint64_t firstSeed, std::uint64_t numCases) {
    // Ranks of the largest world; smaller cases use groups of the first ranks.
    const auto body = [&](Rank rank) { rankMain(rank, firstSeed, numCases); };
    areRanksLaunched() ? runLaunchedRank(kMaxRanks, body, std::chrono::minutes(60))
                       : runRanksAsThreads(kMaxRanks, body, std::chrono::minutes(60));
  }

 private:
  void rankMain(Rank rank, std::uint64_t firstSeed, std::uint64_t numCases) {
    std::vector<std::unique_ptr<Communicator>> groups(kMaxRanks + 1);
    Options options = options_;
    if (numHosts_ > 0) {
      options.hostId = fmt::format("host{}", rank % numHosts_);
    }
    for (int n = std::max(rank + 1, 1); n <= kMaxRanks; ++n) {
      auto group =
          Communicator::create(*stores_[static_cast<std::size_t>(n)], rank, n, options, fmt::format("oracle{}", n));
      ASSERT_TRUE(group.isOk()) << group.status().message();
      groups[static_cast<std::size_t>(n)] = std::move(*group);
    }
    Communicator& all = *groups[kMaxRanks];
    for (std::uint64_t i = 0; i < numCases && !failed_; ++i) {
      if (rank == 0 || areRanksLaunched()) {
        prepare(firstSeed + i);
      }
      meet(all, rank, firstSeed + i);
      const auto n = current_.randomCase.specs.size();
      if (static_cast<std::size_t>(rank) < n && !failed_) {
        check(*groups[n], rank);
      }
      meet(all, rank, firstSeed + i);
    }
  }

  // Without describe(): if only this rank's barrier fails, rank 0 may be making the next case.
  void meet(Communicator& group, Rank rank, std::uint64_t seed) {
    auto work = group.barrier();
    const Status status = work.isOk() ? (*work)->wait() : work.status();
    if (!status.isOk() && !failed_.exchange(true)) {
      std::lock_guard lock(mutex_);
      ADD_FAILURE() << "seed " << seed << ", rank " << rank << ": a barrier beside the case: " << status.message();
    }
  }

  void prepare(std::uint64_t seed) {
    // Some are large enough for several segments through the smallest ring.
    current_.randomCase = makeRandomCase(seed, {.maxRanks = kMaxRanks, .maxElements = seed % 8 == 0 ? 600 : 48});
    const auto& specs = current_.randomCase.specs;
    current_.inputs = fillInputs(seed, specs);
    current_.blank = blankOutputs(specs);
    current_.expected = expectedOutputs(specs, current_.inputs);
  }

  void check(Communicator& group, Rank rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::uint64_t seed = current_.randomCase.seed;
    LocalSpec spec = current_.randomCase.specs[r];
    auto op = group.compileOp(spec);
    if (!op.isOk()) {
      return fail(rank, "compileOp: " + op.status().message());
    }
    if (seed % 4 == 1) {  // the same op, planned by rank 0, runs instead
      spec.whoPlans = WhoPlans::kRank0;
      auto shipped = group.compileOp(spec);
      if (!shipped.isOk()) {
        return fail(rank, "compileOp, planned by rank 0: " + shipped.status().message());
      }
      if ((*shipped)->planBytes() != (*op)->planBytes()) {
        return fail(rank, "the plan that rank 0 made differs from this rank's own");
      }
      op = std::move(shipped);
    }
    Tensors first(**op, current_.inputs[r], current_.blank[r], seed * 7 + r);
    Tensors second(**op, current_.inputs[r], current_.blank[r], seed * 13 + r);
    // Every other case has two runs in flight, one bound, one not.
    auto work = (*op)->run(first.inputViews, first.outputViews);
    if (!work.isOk()) {
      return fail(rank, "run: " + work.status().message());
    }
    WorkPtr other;
    std::unique_ptr<BoundOp> bound;
    if (seed % 2 == 0) {
      auto made = (*op)->bind(second.inputViews, second.outputViews);
      if (!made.isOk()) {
        return fail(rank, "bind: " + made.status().message());
      }
      bound = std::move(*made);
      other = bound->run().value();
    }
    if (Status status = (*work)->wait(); !status.isOk()) {
      return fail(rank, "wait: " + status.message());
    }
    if (first.result() != current_.expected[r]) {
      return fail(rank, "outputs differ from the naive model");
    }
    if (other != nullptr && (!other->wait().isOk() || second.result() != current_.expected[r])) {
      return fail(rank, "outputs of the bound run differ from the naive model");
    }
  }

  void fail(Rank rank, const std::string& what) {
    failed_ = true;
    std::lock_guard lock(mutex_);
    ADD_FAILURE() << "seed " << current_.randomCase.seed << ", rank " << rank << ": " << what << "\n"
                  << describe(current_.randomCase);
  }

  const Options options_;
  const int numHosts_;
  std::vector<std::unique_ptr<Store>> stores_;  // by size of the group
  Current current_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
};

struct SpecPath {
  const char* name;
  OrdinaryPath ordinary;
  std::size_t inlineBytes;
  std::size_t ringBytes;
  std::uint64_t share;  // of ten cases
  const char* transports = "";
  int numHosts = 0;  // as many hosts as SHARDWIRE_HOST_ID makes; 0: this one
};

class OracleTest : public ::testing::TestWithParam<SpecPath> {};

TEST_P(OracleTest, AgreesWithTheNaiveModel) {
  const std::uint64_t cases = numberFromEnvironment("SHARDWIRE_ORACLE_CASES", 20000) * GetParam().share / 10;
  const std::uint64_t seed = numberFromEnvironment("SHARDWIRE_ORACLE_SEED", 1) + GetParam().share * 100000000;
  Options options;
  options.timeout = std::chrono::seconds(60);
  options.ordinaryPath = GetParam().ordinary;
  options.inlineBytes = GetParam().inlineBytes;
  options.ringBytes = GetParam().ringBytes;
  options.transports = testedTransports().empty() ? GetParam().transports : testedTransports();
  fmt::print("{} cases from seed {}\n", cases, seed);
  Oracle(options, GetParam().numHosts).run(seed, cases);
}

INSTANTIATE_TEST_SUITE_P(Paths, OracleTest,
                         ::testing::Values(SpecPath{"as_is", OrdinaryPath::kAuto, 8 << 10, 1 << 20, 4},
                                           SpecPath{"direct", OrdinaryPath::kAuto, 0, 1 << 20, 2},
                                           SpecPath{"copied", OrdinaryPath::kCrossMemory, 0, 1 << 20, 1},
                                           // With such small rings boxes travel in many segments.
                                           SpecPath{"staged", OrdinaryPath::kStaged, 0, 4 << 10, 3},
                                           SpecPath{"tcp_fetched", OrdinaryPath::kCrossMemory, 0, 1 << 20, 1, "tcp"},
                                           SpecPath{"tcp_staged", OrdinaryPath::kStaged, 0, 4 << 10, 1, "tcp"},
                                           // Two hosts: shared memory inside, tcp between.
                                           SpecPath{"mixed_fetched", OrdinaryPath::kCrossMemory, 0, 1 << 20, 1,
                                                    "shm,tcp", 2},
                                           SpecPath{"mixed", OrdinaryPath::kAuto, 8 << 10, 1 << 20, 1, "shm,tcp", 2}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shardwire::testing
