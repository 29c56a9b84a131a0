// The same reshape by Open MPI: MPI_Alltoallw with subarray types, and a 4-byte MPI_Allreduce. Run by mpirun; prints
// the same keys as reshape_bench. Times are of the slowest rank; buffers are rewritten before every iteration.
//
// --only alltoallw,mpi_ordinary: in turns with it shardwire does the reshape, over its mpi transport, between the same
// tensors.
#include <fmt/format.h>
#include <mpi.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>

#include "bench/bench_options.h"
#include "bench/report.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"

namespace shardwire::bench {
namespace {

struct Share {
  int from;
  int extent;
};
// As torch.chunk cuts.
Share shareOf(int extent, int numParts, int part) {
  const int chunk = (extent + numParts - 1) / numParts;
  const int from = std::min(extent, chunk * part);
  return {from, std::min(extent - from, chunk)};
}

// MPI refuses empty subarrays; a peer that gets nothing has count 0 and any type.
MPI_Datatype boxType(int rows, int columns, Share boxRows, Share boxColumns) {
  const int sizes[] = {rows, columns}, subsizes[] = {std::max(boxRows.extent, 1), std::max(boxColumns.extent, 1)};
  const int starts[] = {boxRows.from, boxColumns.from};
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_FLOAT, &type);
  MPI_Type_commit(&type);
  return type;
}

float valueAt(std::int64_t index, int iteration) {
  return static_cast<float>((index + iteration) & 0xFFFF);
}

double slowest(double microseconds) {
  double most = 0;
  MPI_Allreduce(&microseconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return most;
}

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "alltoallw_bench: {}\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

// One rank's tensors, and the two ways from the one to the other.
class Reshape {
 public:
  Reshape(int rank, int numRanks, const BenchOptions& options)
      : rows_(static_cast<int>(options.rows)),
        columns_(static_cast<int>(options.columns)),
        myRows_(shareOf(rows_, numRanks, rank)),
        myColumns_(shareOf(columns_, numRanks, rank)),
        in_(static_cast<std::size_t>(myRows_.extent) * static_cast<std::size_t>(columns_)),
        out_(static_cast<std::size_t>(rows_) * static_cast<std::size_t>(myColumns_.extent)),
        zeros_(static_cast<std::size_t>(numRanks), 0) {
    for (int peer = 0; peer < numRanks; ++peer) {
      const Share peerRows = shareOf(rows_, numRanks, peer), peerColumns = shareOf(columns_, numRanks, peer);
      sendCounts_.push_back(myRows_.extent > 0 && peerColumns.extent > 0 ? 1 : 0);
      receiveCounts_.push_back(peerRows.extent > 0 && myColumns_.extent > 0 ? 1 : 0);
      sendTypes_.push_back(boxType(std::max(myRows_.extent, 1), columns_, {0, myRows_.extent}, peerColumns));
      receiveTypes_.push_back(boxType(rows_, std::max(myColumns_.extent, 1), peerRows, {0, myColumns_.extent}));
    }
  }
  ~Reshape() {
    for (std::size_t peer = 0; peer < sendTypes_.size(); ++peer) {
      MPI_Type_free(&sendTypes_[peer]);
      MPI_Type_free(&receiveTypes_[peer]);
    }
  }
  Reshape(const Reshape&) = delete;
  Reshape& operator=(const Reshape&) = delete;

  std::size_t outputBytes() const { return out_.size() * sizeof(float); }
  void byAlltoallw() {
    MPI_Alltoallw(in_.data(), sendCounts_.data(), zeros_.data(), sendTypes_.data(), out_.data(), receiveCounts_.data(),
                  zeros_.data(), receiveTypes_.data(), MPI_COMM_WORLD);
  }
  void byShardwire() {
    auto work = bound_->run();
    const Status status = work.isOk() ? (*work)->wait() : work.status();
    if (!status.isOk()) {
      fail(status.message());
    }
  }
  void compile(Communicator& group) {
    const Dims inShape{myRows_.extent, columns_}, outShape{rows_, myColumns_.extent};
    LocalSpec spec;
    spec.tensors.push_back({"", Dims{rows_, columns_}, DType::kFloat32, ReduceOp::kNone});
    spec.inputs.push_back({0, inShape, {{{{myRows_.from, 0}, inShape}, {0, 0}}}, 0});
    spec.outputs.push_back({0, outShape, {{{{0, myColumns_.from}, outShape}, {0, 0}}}, 0});
    auto op = group.compileOp(spec);
    if (!op.isOk()) {
      fail(op.status().message());
    }
    const TensorView inputs[] = {TensorView::contiguous(in_.data(), DType::kFloat32, inShape)};
    const TensorView outputs[] = {TensorView::contiguous(out_.data(), DType::kFloat32, outShape)};
    auto bound = (*op)->bind(inputs, outputs);
    if (!bound.isOk()) {
      fail(bound.status().message());
    }
    bound_ = std::move(*bound);
  }

  // Microseconds of the slowest rank.
  double measure(int iteration, const std::function<void()>& way) {
    for (std::size_t i = 0; i < in_.size(); ++i) {
      in_[i] = valueAt(static_cast<std::int64_t>(myRows_.from) * columns_ + static_cast<std::int64_t>(i), iteration);
    }
    std::memset(out_.data(), 0xFF, outputBytes());
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    way();
    const double took = slowest((MPI_Wtime() - start) * 1e6);
    for (int row = 0; row < rows_;
         row += iteration < 0 ? 1 : std::max(1, rows_ - 1)) {  // all of it while warming up, then first and last
      for (int column = 0; column < myColumns_.extent; ++column) {
        const std::int64_t index = static_cast<std::int64_t>(row) * columns_ + myColumns_.from + column;
        if (out_[static_cast<std::size_t>(row) * static_cast<std::size_t>(myColumns_.extent) +
                 static_cast<std::size_t>(column)] != valueAt(index, iteration)) {
          fail(fmt::format("a wrong value at [{}, {}]", row, myColumns_.from + column));
        }
      }
    }
    return took;
  }

 private:
  const int rows_, columns_;
  const Share myRows_, myColumns_;
  std::vector<float> in_, out_;
  std::vector<int> sendCounts_, receiveCounts_, zeros_;
  std::vector<MPI_Datatype> sendTypes_, receiveTypes_;
  std::shared_ptr<BoundOp> bound_;
};

// A group of all ranks over the mpi transport.
std::unique_ptr<Communicator> makeGroup(int rank, int numRanks) {
  char folder[] = "/tmp/shardwire-bench-XXXXXX";
  if (rank == 0 && ::mkdtemp(folder) == nullptr) {
    fail("cannot make a folder in /tmp");
  }
  MPI_Bcast(folder, sizeof(folder), MPI_CHAR, 0, MPI_COMM_WORLD);
  FileStore store(folder);
  auto options = Options::fromEnvironment();
  if (!options.isOk()) {
    fail(options.status().message());
  }
  options->transports = "mpi";
  auto group = Communicator::create(store, rank, numRanks, *options, "bench");
  if (!group.isOk()) {
    fail(group.status().message());
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    std::filesystem::remove_all(folder);
  }
  return std::move(*group);
}

std::vector<CaseResult> runReshapes(int rank, int numRanks, const BenchOptions& options, bool withShardwire) {
  Reshape reshape(rank, numRanks, options);
  std::vector<CaseResult> results = {{"alltoallw", reshape.outputBytes(), {}}};
  std::vector<std::function<void()>> ways = {[&] { reshape.byAlltoallw(); }};
  std::unique_ptr<Communicator> group;
  if (withShardwire) {
    group = makeGroup(rank, numRanks);
    reshape.compile(*group);
    results.push_back({"mpi_ordinary", reshape.outputBytes(), {}});
    ways.emplace_back([&] { reshape.byShardwire(); });
  }
  for (int iteration = -options.warmup; iteration < options.iterations; ++iteration) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const double took = reshape.measure(iteration, ways[i]);
      if (iteration >= 0) {
        results[i].microseconds.push_back(took);
      }
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return results;
}

CaseResult runAllReduce(const BenchOptions& options) {
  CaseResult result{"mpi_allreduce_4B", 0, {}};
  float in = 1, out = 0;
  for (int i = -std::min(options.latencyIterations, 500); i < options.latencyIterations; ++i) {
    const double start = MPI_Wtime();
    MPI_Allreduce(&in, &out, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (i >= 0) {
      result.microseconds.push_back((MPI_Wtime() - start) * 1e6);
    }
  }
  return result;
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  using namespace shardwire::bench;
  BenchOptions options = parseBenchOptions(argc, argv, "Open MPI: the reshape of reshape_bench by MPI_Alltoallw");
  const bool withShardwire = !options.only.empty() && options.wants("mpi_ordinary");
  int rank = 0, numRanks = 1, threads = 0;
  MPI_Init_thread(&argc, &argv, withShardwire ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &threads);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &numRanks);
  options.ranks = numRanks;
  Report report{"openmpi", {}, {}};
  if (options.wants("mpi_allreduce_4B")) {
    report.cases.push_back(runAllReduce(options));
  }
  if (options.wants("alltoallw")) {
    const auto results = runReshapes(rank, numRanks, options, withShardwire);
    report.cases.insert(report.cases.end(), results.begin(), results.end());
  }
  if (rank == 0) {
    print(report, options);
  }
  MPI_Finalize();
  return 0;
}
