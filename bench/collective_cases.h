// The collectives of collectives_bench: each through a Communicator and through MPI, on the same number of bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwire/communicator.h"

namespace shardwire::bench {

enum class By : std::uint8_t {
  kHeap = 0,
  kOrdinary = 1,
  kMpi = 2
};  // shardwire with tensors in the shared heap, and elsewhere; Open MPI
inline constexpr int kNumWays = 3;

// One collective of `bytes` bytes on this rank; owns the f32 tensors.
class CollectiveCase {
 public:
  // `bytes` as nccl-tests counts them: the longer of a rank's input and output.
  CollectiveCase(Communicator& group, std::string name, std::size_t bytes);
  ~CollectiveCase();
  CollectiveCase(const CollectiveCase&) = delete;
  CollectiveCase& operator=(const CollectiveCase&) = delete;

  static const std::vector<std::string>& names();
  // The factor from bytes to bus bandwidth, as defined by nccl-tests.
  static double busFactor(const std::string& name, int numRanks);
  // Several calls go by between two halves of a ping-pong: what one time is divided by.
  double callsPerRun() const { return name_ == "send_recv" ? 2 : 1; }
  std::size_t bytes() const;

  // Writes all tensors anew.
  void prepare(By by, int iteration);
  // One call on every rank; returns when it is done here.
  void run(By by);
  // Ends the bench unless the first and last element are right after prepare() and one run().
  void check(By by, int iteration);

 private:
  void runShardwire(By by);
  void runMpi();
  // One tensor per rank; made once, since an MPI program makes none either.
  std::vector<TensorView> views(float* first) const;
  float* input(By by) const;
  float* output(By by) const;
  bool hasOutput() const;

  Communicator& group_;
  const std::string name_;
  const int rank_, numRanks_;
  std::int64_t chunk_ = 0;  // elements of one rank's part of a list, or of the whole tensor
  std::vector<float> ordinaryIn_, ordinaryOut_;
  float* heapIn_ = nullptr;
  float* heapOut_ = nullptr;
  std::array<TensorView, 2> in_, out_;                       // one tensor, by By; made once, as the lists are
  std::array<std::vector<TensorView>, 2> inputs_, outputs_;  // of a list, by By
};

}  // namespace shardwire::bench
