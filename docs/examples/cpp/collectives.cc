// Collectives on plain memory, without torch: all_reduce, all_gather and all_to_all between processes of one host.
//   collectives 4                                        forks four ranks
//   RANK=r WORLD_SIZE=n STORE=/tmp/folder collectives    is one rank of n; the folder is new and empty
#include <shardwire/communicator.h>
#include <shardwire/stores.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

namespace {

using shardwire::DType;
using shardwire::ReduceOp;
using shardwire::TensorView;

// Every call may refuse at once or fail later; both are values.
void wait(const shardwire::Result<shardwire::WorkPtr>& work) {
  const shardwire::Status status = work.isOk() ? (*work)->wait() : work.status();
  if (!status.isOk()) {
    std::fprintf(stderr, "shardwire: %s\n", status.message().c_str());
    std::exit(2);
  }
}

// One view per rank: the equal parts of a buffer.
std::vector<TensorView> partsOf(std::vector<float>& buffer, int numParts) {
  const auto elems = static_cast<std::int64_t>(buffer.size()) / numParts;
  std::vector<TensorView> parts;
  for (int part = 0; part < numParts; ++part) {
    parts.push_back(TensorView::contiguous(buffer.data() + part * elems, DType::kFloat32, {elems}));
  }
  return parts;
}

int runRank(int rank, int worldSize, const std::string& folder) {
  shardwire::FileStore store(folder);  // how the ranks find each other: any store of your job will do
  shardwire::Options options;
  options.timeout = std::chrono::seconds(60);
  auto group = shardwire::Communicator::create(store, rank, worldSize, options, "example");
  if (!group.isOk()) {
    std::fprintf(stderr, "shardwire: %s\n", group.status().message().c_str());
    return 2;
  }
  const auto n = static_cast<std::size_t>(worldSize);

  // Each rank gives rank + 1; all get the sum. A view may be strided: here it is every other element.
  std::vector<float> sums(20, static_cast<float>(rank + 1));
  wait((*group)->allReduce({reinterpret_cast<std::byte*>(sums.data()), DType::kFloat32, {10}, {2}}, ReduceOp::kSum));
  const float sum = static_cast<float>(worldSize * (worldSize + 1)) / 2;
  bool right = sums[0] == sum && sums[18] == sum && sums[1] == static_cast<float>(rank + 1);

  // Two operations in flight: everyone's four elements on every rank, and element r of each rank's row to rank r.
  std::vector<float> mine(4, static_cast<float>(rank)), everyones(4 * n), row(n), column(n);
  std::iota(row.begin(), row.end(), static_cast<float>(rank * worldSize));
  auto gathered =
      (*group)->allGather(TensorView::contiguous(mine.data(), DType::kFloat32, {4}), partsOf(everyones, worldSize));
  auto exchanged = (*group)->allToAll(partsOf(column, worldSize), partsOf(row, worldSize));
  wait(gathered);
  wait(exchanged);
  for (std::size_t r = 0; r < n; ++r) {
    right = right && everyones[4 * r] == static_cast<float>(r) && everyones[4 * r + 3] == static_cast<float>(r);
    right = right && column[r] == static_cast<float>(r * n) + static_cast<float>(rank);
  }
  wait((*group)->barrier());  // nobody leaves while others still need it
  std::printf("rank %d of %d: sum, gathered and exchanged values %s\n", rank, worldSize, right ? "right" : "WRONG");
  return right ? 0 : 1;
}

int forkRanks(int worldSize) {
  char folder[] = "/tmp/shardwire-example-XXXXXX";
  if (::mkdtemp(folder) == nullptr) {
    return 2;
  }
  for (int rank = 0; rank < worldSize; ++rank) {
    if (::fork() == 0) {
      std::exit(runRank(rank, worldSize, folder));
    }
  }
  bool areAllWell = true;
  for (int state = 0; ::wait(&state) > 0;) {
    areAllWell = areAllWell && WIFEXITED(state) && WEXITSTATUS(state) == 0;
  }
  std::filesystem::remove_all(folder);
  return areAllWell ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  const char* worldSize = std::getenv("WORLD_SIZE");
  const char* folder = std::getenv("STORE");
  if (rank != nullptr && worldSize != nullptr && folder != nullptr) {
    return runRank(std::atoi(rank), std::atoi(worldSize), folder);
  }
  return forkRanks(argc > 1 ? std::max(1, std::atoi(argv[1])) : 2);
}
