// The memory of all ranks of a group, and the programs of one collective run over this memory stage by stage in this
// thread. For tests of algorithms.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/collectives/collective.h"
#include "tests/support/naive_model.h"

namespace shardwire::testing {

class RanksInMemory {
 public:
  RanksInMemory(const internal::CollectiveCall& call, internal::Algorithm algorithm,
                const internal::Topology& topology);

  // Every rank runs each stage before any rank runs the next. Fails the test where plans are not sound or do not fit
  // together.
  void run();

  const internal::Program& program(Rank rank) const { return programs_[static_cast<std::size_t>(rank)]; }

  RankBytes inputs;           // by rank, by tensor
  RankBytes outputs;          // likewise
  bool isInPlace = false;     // inputs are the outputs as well
  std::uint64_t acrossBytes;  // moved from one host to another

 private:
  Bytes& whole(std::size_t rank, const internal::StageTensor& part);
  std::vector<Bytes> read(std::size_t rank, const std::vector<internal::StageTensor>& parts);
  void write(std::size_t rank, const std::vector<internal::StageTensor>& parts, const std::vector<Bytes>& values);
  void count(std::size_t rank, const internal::Plan& plan);

  const std::size_t elemBytes_;
  const internal::Topology& topology_;
  std::vector<internal::Program> programs_;
  std::vector<Bytes> scratch_;  // by rank
};

}  // namespace shardwire::testing
