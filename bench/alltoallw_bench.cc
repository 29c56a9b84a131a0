// The same reshape by Open MPI: MPI_Alltoallw with subarray types, and a 4-byte MPI_Allreduce. Run by mpirun; prints the same keys as
// reshape_bench. Times are of the slowest rank; buffers are rewritten before every iteration.
#include <mpi.h>

#include <algorithm>
#include <cstring>

#include "bench/bench_options.h"
#include "bench/report.h"

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

CaseResult runReshape(int rank, int numRanks, const BenchOptions& options) {
  const int rows = static_cast<int>(options.rows), columns = static_cast<int>(options.columns);
  const Share myRows = shareOf(rows, numRanks, rank), myColumns = shareOf(columns, numRanks, rank);
  std::vector<float> in(static_cast<std::size_t>(myRows.extent) * static_cast<std::size_t>(columns));
  std::vector<float> out(static_cast<std::size_t>(rows) * static_cast<std::size_t>(myColumns.extent));
  const std::size_t n = static_cast<std::size_t>(numRanks);
  std::vector<int> sendCounts(n), receiveCounts(n), zeros(n, 0);
  std::vector<MPI_Datatype> sendTypes, receiveTypes;
  for (int peer = 0; peer < numRanks; ++peer) {
    const Share peerRows = shareOf(rows, numRanks, peer), peerColumns = shareOf(columns, numRanks, peer);
    sendCounts[static_cast<std::size_t>(peer)] = myRows.extent > 0 && peerColumns.extent > 0 ? 1 : 0;
    receiveCounts[static_cast<std::size_t>(peer)] = peerRows.extent > 0 && myColumns.extent > 0 ? 1 : 0;
    sendTypes.push_back(boxType(std::max(myRows.extent, 1), columns, {0, myRows.extent}, peerColumns));
    receiveTypes.push_back(boxType(rows, std::max(myColumns.extent, 1), peerRows, {0, myColumns.extent}));
  }
  CaseResult result{"alltoallw", out.size() * sizeof(float), {}};
  for (int iteration = -options.warmup; iteration < options.iterations; ++iteration) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      in[i] = valueAt(static_cast<std::int64_t>(myRows.from) * columns + static_cast<std::int64_t>(i), iteration);
    }
    std::memset(out.data(), 0xFF, out.size() * sizeof(float));
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    MPI_Alltoallw(in.data(), sendCounts.data(), zeros.data(), sendTypes.data(), out.data(), receiveCounts.data(), zeros.data(),
                  receiveTypes.data(), MPI_COMM_WORLD);
    const double took = slowest((MPI_Wtime() - start) * 1e6);
    if (iteration >= 0) {
      result.microseconds.push_back(took);
    }
    const std::size_t last = out.size() - 1;  // row-major: the last element of my columns
    const std::int64_t lastIndex = static_cast<std::int64_t>(rows - 1) * columns + myColumns.from + myColumns.extent - 1;
    if (!out.empty() && (out[0] != valueAt(myColumns.from, iteration) || out[last] != valueAt(lastIndex, iteration))) {
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  for (std::size_t peer = 0; peer < n; ++peer) {
    MPI_Type_free(&sendTypes[peer]);
    MPI_Type_free(&receiveTypes[peer]);
  }
  return result;
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
  MPI_Init(&argc, &argv);
  int rank = 0, numRanks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &numRanks);
  BenchOptions options = parseBenchOptions(argc, argv, "Open MPI: the reshape of reshape_bench by MPI_Alltoallw");
  options.ranks = numRanks;
  Report report{"openmpi", {}, {}};
  if (options.wants("mpi_allreduce_4B")) {
    report.cases.push_back(runAllReduce(options));
  }
  if (options.wants("alltoallw")) {
    report.cases.push_back(runReshape(rank, numRanks, options));
  }
  if (rank == 0) {
    print(report, options);
  }
  MPI_Finalize();
  return 0;
}
