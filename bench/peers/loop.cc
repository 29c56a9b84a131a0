// runPeerLoop: for each operation and size of the settings the loop allocates the tensors, makes one call whose values
// it checks in full, and then takes samples. One sample is a row of calls, back to back, between two barriers in shared
// memory; its time is the slowest rank's. A single short call takes less time than ranks need to leave a barrier, so
// short calls come in rows of several. Rank 0 ends a cell early when the cell's time is used up.
#include "bench/peers/loop.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/shared_barrier.h"

namespace shardwire::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int kMostRanks = 64;
constexpr std::size_t kFewestSamples = 3;
constexpr const char* kNames[kPeerNumOperations] = {"all_reduce",     "broadcast",  "all_gather",
                                                    "reduce_scatter", "all_to_all", "send_recv",
                                                    "barrier",        "reshape",    "memcpy"};

struct Shared {
  SharedBarrier barrier;
  std::array<double, kMostRanks> microseconds;
  std::atomic<bool> isOver;
};

[[noreturn]] void giveUp(const std::string& why) {
  std::fprintf(stderr, "peer loop: %s\n", why.c_str());
  std::exit(1);
}

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

float valueAt(int rank, std::int64_t index, int iteration) {
  return static_cast<float>((rank + index + iteration) & 0xFF);
}

// The tensors of one operation and size, their values before a call and after.
class Cell {
 public:
  Cell(const Peer& peer, int operation, std::size_t size, int rank, int numRanks) : peer_(peer) {
    const bool isList = operation == kPeerAllGather || operation == kPeerReduceScatter || operation == kPeerAllToAll;
    const auto elems = static_cast<std::int64_t>(size / sizeof(float));
    call_ = {operation, rank, numRanks, std::max<std::int64_t>(1, isList ? elems / numRanks : elems),
             0,         0,    nullptr,  nullptr};
    if (operation == kPeerReshape) {
      const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(elems)));
      call_.rows = std::max<std::int64_t>(1, side);
      call_.columns = std::max<std::int64_t>(1, side / numRanks);
      call_.elems = call_.rows * call_.columns;
    }
    isList_ = isList || operation == kPeerReshape;
    call_.in = allocate();
    call_.out = allocate();
  }
  ~Cell() {
    release(call_.in);
    release(call_.out);
  }
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;

  const PeerCall& call() const { return call_; }
  // As nccl-tests count: the longer of a rank's input and output.
  std::int64_t bytes() const { return call_.operation == kPeerBarrier ? 0 : 4 * numElems(); }
  bool prepare() { return peer_.prepare == nullptr || peer_.prepare(peer_.context, &call_) != 0; }
  void run() {
    if (call_.operation == kPeerMemcpy) {
      std::memcpy(call_.out, call_.in, static_cast<std::size_t>(call_.elems) * sizeof(float));
    } else if (peer_.run(peer_.context, &call_) == 0) {
      giveUp(std::string(kNames[call_.operation]) + " failed");
    }
  }

  void fill(int iteration) {
    for (std::int64_t i = 0; i < numElems(); ++i) {
      call_.in[i] =
          call_.operation == kPeerReshape ? valueAt(0, firstIndex() + i, iteration) : valueAt(call_.rank, i, iteration);
      call_.out[i] = -1;
    }
  }
  void zero() {
    std::fill_n(call_.in, numElems(), 0.0F);
    std::fill_n(call_.out, numElems(), 0.0F);
  }
  // After fill(0) and one run.
  void check() const {
    const bool inPlace = call_.operation == kPeerAllReduce || call_.operation == kPeerBroadcast;
    const std::int64_t numResults = call_.operation == kPeerBarrier                      ? 0
                                    : call_.operation == kPeerSendRecv && call_.rank > 1 ? 0
                                    : call_.operation == kPeerReduceScatter              ? call_.elems
                                                                                         : numElems();
    for (std::int64_t i = 0; i < numResults; ++i) {
      const float is = (inPlace ? call_.in : call_.out)[i];
      if (is != expectedAt(i)) {
        giveUp(std::string(kNames[call_.operation]) + ": element " + std::to_string(i) + " on rank " +
               std::to_string(call_.rank) + " is " + std::to_string(is) + ", not " + std::to_string(expectedAt(i)));
      }
    }
  }

 private:
  std::int64_t numElems() const { return call_.elems * (isList_ ? call_.numRanks : 1); }
  std::int64_t firstIndex() const { return call_.rank * call_.rows * call_.columns * call_.numRanks; }
  float sumAt(std::int64_t index) const {
    float sum = 0;
    for (int r = 0; r < call_.numRanks; ++r) {
      sum += valueAt(r, index, 0);
    }
    return sum;
  }
  float expectedAt(std::int64_t i) const {
    const auto from = static_cast<int>(i / call_.elems);
    switch (call_.operation) {
      case kPeerAllReduce:
        return sumAt(i);
      case kPeerReduceScatter:
        return sumAt(call_.rank * call_.elems + i);
      case kPeerAllGather:
        return valueAt(from, i % call_.elems, 0);
      case kPeerAllToAll:
        return valueAt(from, call_.rank * call_.elems + i % call_.elems, 0);
      case kPeerReshape: {
        const std::int64_t row = i / call_.columns, column = call_.rank * call_.columns + i % call_.columns;
        return valueAt(0, row * call_.columns * call_.numRanks + column, 0);
      }
      case kPeerMemcpy:
        return valueAt(call_.rank, i, 0);
      default:
        return valueAt(call_.operation == kPeerBroadcast ? 0 : 1 - call_.rank, i, 0);
    }
  }
  float* allocate() const {
    const std::size_t bytes = static_cast<std::size_t>(numElems()) * sizeof(float);
    void* memory = peer_.allocate != nullptr ? peer_.allocate(peer_.context, bytes) : std::malloc(bytes);
    if (memory == nullptr) {
      giveUp("no memory for " + std::to_string(bytes) + " bytes");
    }
    return static_cast<float*>(memory);
  }
  void release(float* memory) const {
    peer_.release != nullptr ? peer_.release(peer_.context, memory) : std::free(memory);
  }

  const Peer& peer_;
  PeerCall call_{};
  bool isList_ = false;
};

class Loop {
 public:
  Loop(const Json& settings, int rank, int numRanks, const Peer& peer)
      : settings_(settings), rank_(rank), numRanks_(numRanks), peer_(peer) {
    const std::string path = settings["shared"];
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* memory = file < 0 || ::ftruncate(file, sizeof(Shared)) != 0
                       ? MAP_FAILED
                       : ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED || numRanks > kMostRanks) {
      giveUp("no shared memory for the ranks in " + path);
    }
    ::close(file);
    shared_ = static_cast<Shared*>(memory);
  }
  ~Loop() { ::munmap(shared_, sizeof(Shared)); }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  Json measureAll() {
    Json cells = Json::array(), lacks = Json::array();
    for (const std::string name : settings_["operations"]) {
      const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
      if (found == std::end(kNames)) {
        giveUp("there is no operation " + name);
      }
      std::int64_t bytesBefore = -1;
      for (const std::size_t size : settings_["sizes"]) {
        Cell cell(peer_, static_cast<int>(found - std::begin(kNames)), size, rank_, numRanks_);
        if (cell.bytes() == bytesBefore) {
          continue;  // so many ranks cannot share less, and a barrier has one size
        }
        if (!cell.prepare()) {
          lacks.push_back(name);
          break;
        }
        bytesBefore = cell.bytes();
        cells.push_back(measure(name, size, cell));
      }
    }
    return {{"version", peer_.version}, {"ranks", numRanks_}, {"cells", cells}, {"lacks", lacks}};
  }

 private:
  Json measure(const std::string& name, std::size_t size, Cell& cell) {
    const bool isShort = cell.bytes() <= settings_["row_up_to"].get<std::int64_t>();
    const int numCalls = isShort ? settings_["calls_in_row"].get<int>() : 1;
    const int iterations = settings_["iterations"];
    const double limit = settings_["cell_seconds"].get<double>() * 1e6;
    cell.fill(0);
    shared_->barrier.arrive(numRanks_);  // no rank receives before its tensors are filled
    cell.run();
    cell.check();
    cell.zero();
    std::vector<double> samples;
    const auto start = Clock::now();
    for (int iteration = -settings_["warmup"].get<int>(); iteration < iterations && !shared_->isOver; ++iteration) {
      const double took = sample(cell, iteration, numCalls);
      if (iteration >= 0) {
        samples.push_back(name == "send_recv" ? took / 2 : took);
      }
      if (rank_ == 0 && samples.size() >= kFewestSamples && since(start) > limit) {
        shared_->isOver = true;
      }
      shared_->barrier.arrive(numRanks_);
    }
    shared_->barrier.arrive(numRanks_);
    shared_->isOver = false;
    shared_->barrier.arrive(numRanks_);
    return {{"operation", name}, {"size", size}, {"bytes", cell.bytes()}, {"calls", numCalls}, {"us", samples}};
  }

  // Microseconds of one call on the slowest rank.
  double sample(Cell& cell, int iteration, int numCalls) {
    if (settings_["rewrite"]) {
      cell.fill(iteration);
    }
    shared_->barrier.arrive(numRanks_);
    const auto start = Clock::now();
    for (int i = 0; i < numCalls; ++i) {
      cell.run();
    }
    shared_->microseconds[static_cast<std::size_t>(rank_)] = since(start) / numCalls;
    shared_->barrier.arrive(numRanks_);
    return *std::max_element(shared_->microseconds.begin(), shared_->microseconds.begin() + numRanks_);
  }

  const Json& settings_;
  const int rank_, numRanks_;
  const Peer& peer_;
  Shared* shared_ = nullptr;
};

}  // namespace
}  // namespace shardwire::bench

int runPeerLoop(const char* settings, int rank, int numRanks, const Peer* peer) {
  using namespace shardwire::bench;
  std::ifstream file(settings);
  const Json all = Json::parse(file, nullptr, false);
  if (all.is_discarded()) {
    giveUp(std::string("no settings in ") + settings);
  }
  if (all["pin"]) {
    pinRank(rank);
  }
  const Json results = Loop(all, rank, numRanks, *peer).measureAll();
  if (rank == 0 && !(std::ofstream(all["results"].get<std::string>()) << results << std::flush)) {
    giveUp("cannot write the results");
  }
  return 0;
}
