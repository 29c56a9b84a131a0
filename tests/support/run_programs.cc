#include "tests/support/run_programs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/run_plans.h"

namespace shardwire::testing {

using internal::CollectiveCall;
using internal::Plan;
using internal::PlanEdge;
using internal::Stage;
using internal::StageTensor;
using internal::Topology;

RanksInMemory::RanksInMemory(const CollectiveCall& call, internal::Algorithm algorithm, const Topology& topology)
    : acrossBytes(0), elemBytes_(elementBytes(call.dtype)), topology_(topology) {
  for (Rank rank = 0; rank < topology.worldSize; ++rank) {
    programs_.push_back(programOf(call, algorithm, rank, topology));
    scratch_.emplace_back(static_cast<std::size_t>(programs_.back().scratchElems) * elemBytes_);
  }
}

void RanksInMemory::run() {
  for (std::size_t stage = 0; stage < programs_[0].stages.size(); ++stage) {
    std::vector<Plan> plans;
    RankBytes in;
    RankBytes out;
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      ASSERT_EQ(programs_[rank].stages.size(), programs_[0].stages.size());
      const Stage& mine = programs_[rank].stages[stage];
      ASSERT_EQ(validate(mine.plan).message(), "");
      plans.push_back(mine.plan);
      in.push_back(read(rank, mine.inputs));
      out.push_back(read(rank, mine.outputs));
      count(rank, mine.plan);
    }
    ASSERT_EQ(findEdgeMismatch(plans), "");
    runPlans(plans, in, out);
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      write(rank, programs_[rank].stages[stage].outputs, out[rank]);
    }
  }
}

Bytes& RanksInMemory::whole(std::size_t rank, const StageTensor& part) {
  if (part.from == StageTensor::From::kScratch) {
    return scratch_[rank];
  }
  return (part.from == StageTensor::From::kInput || isInPlace ? inputs
                                                              : outputs)[rank][static_cast<std::size_t>(part.index)];
}

std::vector<Bytes> RanksInMemory::read(std::size_t rank, const std::vector<StageTensor>& parts) {
  std::vector<Bytes> all;
  for (const StageTensor& part : parts) {
    const Bytes& from = whole(rank, part);
    const std::size_t first = static_cast<std::size_t>(part.first) * elemBytes_;
    const std::size_t bytes = static_cast<std::size_t>(part.numElems) * elemBytes_;
    const bool isInside = first <= from.size() && bytes <= from.size() - first;
    EXPECT_TRUE(isInside || bytes == 0) << "rank " << rank << " names elements past the end of a tensor";
    all.push_back(isInside ? Bytes(from.begin() + static_cast<std::ptrdiff_t>(first),
                                   from.begin() + static_cast<std::ptrdiff_t>(first + bytes))
                           : Bytes(bytes));
  }
  return all;
}

void RanksInMemory::write(std::size_t rank, const std::vector<StageTensor>& parts, const std::vector<Bytes>& values) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Bytes& to = whole(rank, parts[i]);
    const std::size_t first = static_cast<std::size_t>(parts[i].first) * elemBytes_;
    if (!values[i].empty() && first + values[i].size() <= to.size()) {
      std::copy(values[i].begin(), values[i].end(), to.begin() + static_cast<std::ptrdiff_t>(first));
    }
  }
}

void RanksInMemory::count(std::size_t rank, const Plan& plan) {
  for (const PlanEdge& edge : plan.sends) {
    if (!topology_.hosts.empty() && topology_.hosts[rank] != topology_.hosts[static_cast<std::size_t>(edge.peer)]) {
      acrossBytes += edge.bytes;
    }
  }
}

}  // namespace shardwire::testing
