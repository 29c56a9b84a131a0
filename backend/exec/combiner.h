// The reducing moves of one run, over boxes of several ranks. Under the group's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/exec/receive_edge.h"
#include "backend/exec/remote_reads.h"
#include "backend/exec/run_scope.h"

namespace shardwire::internal {

class Combiner {
 public:
  // All arguments outlive the combiner. receiveFrom: by rank; null when no edge comes from the rank.
  Combiner(const RunScope& run, RemoteReads& reads, const std::vector<ReceiveEdge*>& receiveFrom);

  void reset();
  bool isDone() const { return run_.plan.firstCombine + next_ == run_.plan.moves.size(); }
  // Reduces available bytes, some megabytes at most.
  bool step();

 private:
  void open(const PlanMove& move);
  bool reduce(const PlanMove& move, const StridedBox& to);
  bool gather(const PlanMove& move);
  bool gatherOne(const PlanMove& move, std::uint32_t index);
  bool readCopied(const PlanMove& move);
  void consume(const PlanMove& move);
  bool appearsLater(const PlanMove& move, std::uint32_t index) const;
  const PlanSource& source(const PlanMove& move, std::uint32_t index) const {
    return run_.plan.sources[move.firstSource + index];
  }
  bool isOwn(const PlanSource& source) const { return source.rank == run_.plan.rank; }
  ReceiveEdge& edgeOf(const PlanSource& source) { return *receiveFrom_[static_cast<std::size_t>(source.rank)]; }
  bool isReached(const PlanSource& source, Reach reach) {
    return !isOwn(source) && edgeOf(source).reachOf(source.slot) == reach;
  }

  const RunScope& run_;
  RemoteReads& reads_;
  const std::vector<ReceiveEdge*>& receiveFrom_;

  std::uint32_t next_ = 0;  // the current combine, counted from Plan::firstCombine
  SegmentCursor cursor_;    // of the current combine
  bool cursorOpen_ = false;
  std::vector<StridedBox> boxes_;  // the sources of the current segment
  std::uint32_t ready_ = 0;        // the number of available sources in boxes_
  std::vector<std::byte> held_;    // staged segments of a peer with a further source for the same combine
  std::size_t heldBytes_ = 0;
  std::vector<PeerReads*> owners_;    // scratch of reduce(): ranks of this process with memory to be read
  std::vector<DirectRead> readings_;  // while one segment is reduced
};

}  // namespace shardwire::internal
