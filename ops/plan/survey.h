// The effects of a whole operation, computed without any group: every rank's plan is made, checked against its own
// bytes and against the plans of its peers, and counted. Used to plan on one machine the operations of many. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/plan/redistribute.h"
#include "shardwire/export.h"

namespace shardwire::internal {

struct RankSurvey {
  std::uint64_t bytesSent = 0;      // to other ranks
  std::uint64_t bytesReceived = 0;  // from other ranks
  std::uint64_t bytesLocal = 0;     // copied from own inputs to own outputs
  std::uint64_t bytesCombined = 0;  // addends that the reductions of this rank read, own and remote
  // The least bytes of any plan: of elements that the rank wants and does not hold, each element once, in the narrower
  // of the two types. Found by cutting boxes, not by the planner. A plan that reduces may bring more: every addend.
  std::uint64_t leastReceived = 0;
  std::uint64_t numMoves = 0;
  std::uint64_t numSendEdges = 0;
  std::uint64_t numReceiveEdges = 0;
  std::uint64_t planBytes = 0;     // in memory
  std::uint64_t encodedBytes = 0;  // of the plan on the wire
};

struct Survey {
  std::vector<Traffic::Edge> edges;  // as trafficOf
  std::vector<RankSurvey> ranks;
  std::vector<std::uint64_t> leastIntoHost;  // by host number; an element wanted by several ranks of a host counts once
};

// hosts: one number per rank, 0 <= number < ranks; empty: one host. Errors: all errors of redistribute; kInternal
// naming rank and rule where the plans of two ranks do not fit together.
SHARDWIRE_EXPORT Result<Survey> surveyOf(const GlobalSpec& spec, HostMap hosts = {});

}  // namespace shardwire::internal
