// The part of one run for the bytes to one peer: posts how the peer reaches each input, packs the inputs to be staged,
// and waits until the peer has read the rest. Under the group's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/exec/run_scope.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class SendEdge {
 public:
  // Both arguments outlive the edge.
  SendEdge(const RunScope& run, const PlanEdge& edge);

  bool isDone() const { return done_; }
  // Of the inputs whose way is measured, some are read, some staged. False before the first step.
  bool readsMeasured() const { return readsMeasured_; }
  bool stagesMeasured() const { return stagesMeasured_; }
  void reset();
  // `blockedBulk`: as Activity::step's.
  bool step(std::vector<bool>& blockedBulk);
  // Not ok: no acknowledgement was due.
  Status onAck();

 private:
  void choosePaths();
  Reach chooseReach(std::size_t slot, RemoteAddress* address);
  bool isWorthReading(std::size_t slot, std::uint32_t numItems, std::size_t minRunBytes) const;
  bool isCombined(std::size_t slot) const;
  bool chooseStaged(std::size_t slot, const ReadLimits& limits);
  bool isNarrowed(std::size_t slot) const { return isNarrowed_[slot]; }
  bool isStaged(const PlanSendItem& item) const { return reach_[static_cast<std::size_t>(item.slot)] == Reach::kNone; }
  const PlanSendItem& item(std::uint32_t index) const { return run_.plan.sendItems[edge_.first + index]; }
  bool isPosted() const { return silent_ || slotsPosted_ == edge_.inputs.size(); }
  void conceal();
  bool postSlots();
  bool packSome();
  bool openGroup();
  bool makeRoom(std::size_t bytes);
  void commitFrame();

  const RunScope& run_;
  const PlanEdge& edge_;
  std::vector<bool> isNarrowed_;  // by slot: staged, the input takes fewer bytes than in memory here

  bool started_ = false;  // paths chosen
  bool silent_ = false;   // a short edge: all bytes are staged, and nothing is posted
  bool anyExposed_ = false;
  bool anyStaged_ = false;
  bool readsMeasured_ = false;
  bool stagesMeasured_ = false;
  bool acked_ = false;
  bool done_ = false;
  std::uint32_t slotsPosted_ = 0;
  std::vector<Reach> reach_;  // by slot
  std::vector<RemoteAddress> address_;
  std::uint32_t first_ = 0;  // first item of the group being packed
  std::uint32_t groupEnd_ = 0;
  std::uint32_t inGroup_ = 0;  // next item of the group for the current segment
  SegmentCursor cursor_;
  std::span<std::byte> frame_;  // reserved, being filled
  std::size_t filled_ = 0;
};

}  // namespace shardwire::internal
