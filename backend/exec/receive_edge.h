// The part of one run that takes the bytes of one peer: learns how to reach the peer's inputs, does the edge's copies,
// and gives the rest to the Combiner. Under the group's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/exec/remote_reads.h"
#include "backend/exec/run_scope.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class ReceiveEdge {
 public:
  // All arguments outlive the edge.
  ReceiveEdge(const RunScope& run, RemoteReads& reads, const PlanEdge& edge);
  // Before the first run: this source, of a move of `shape`, lies on this edge.
  void noteSource(const PlanSource& source, const Dims& shape, std::size_t elemBytes);

  Rank peer() const { return edge_.peer; }
  bool isDone() const { return done_; }
  // Some frame of this run came.
  bool isSeen() const { return seen_; }
  void reset();
  // Copies available bytes, some megabytes at most.
  bool step();
  // Ends the edge when all of it was read; acknowledges if an acknowledgement is due. `areCombinesDone`: the Combiner
  // needs no more bytes of any peer.
  bool finish(bool areCombinesDone);
  Status onPost(const Received<PostFrame>& frame);

  // For the Combiner.

  // Whether this rank knows how to reach the inputs.
  bool isReadable();
  // Precondition: isReadable().
  Reach reachOf(std::int32_t slot) const {
    return silent_ ? Reach::kNone : slots_[static_cast<std::size_t>(slot)].reach;
  }
  const RemoteInput& input(std::int32_t slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  // kDirect: the peer's box in the peer's memory.
  StridedBox directBox(std::int32_t slot, const Dims& offset) const;
  // All bytes of the edge came in frames and were taken: the peer has nothing more to do here, even while combines of
  // other peers' bytes keep the edge open.
  bool hasTakenAll() const { return !anyExposed_ && taken_ == edge_.bytes; }
  // Staged bytes in the lane are not all that the peer owes: posts have not come, or the peer's memory is to be read
  // and acknowledged.
  bool awaitsMoreThanStaged() const;
  // The edge's copies come first on the wire.
  bool areCopiesDone() const { return move_ == edge_.count; }
  // The next `bytes` staged bytes; null when the bytes have not come. Valid until consume().
  const std::byte* staged(std::size_t bytes);
  void consume(std::size_t bytes);
  // The peer's memory could not be read. If the peer failed and withdrew the memory, this call fails nothing: the
  // peer's reason is on the way and is to be named.
  void refuseRead(Status status);

 private:
  // Bounds of this rank's reads of one slot: one past the highest index in each dimension.
  struct SlotBounds {
    Dims end;
    std::size_t elemBytes = 0;
  };

  Connection& connection() const { return run_.context().connection(edge_.peer); }
  bool takeSlot(const PostedSlot& posted);
  bool openFrame();
  void openCursor(const PlanMove& move, Reach reach);
  bool copySegment(const PlanMove& move, const PlanSource& source);
  bool read(const PlanMove& move, const PlanSource& source, const StridedBox& dst);

  const RunScope& run_;
  RemoteReads& reads_;
  const PlanEdge& edge_;
  std::vector<SlotBounds> bounds_;  // by slot
  const bool hasCombines_;

  bool silent_ = false;  // the peer posts nothing: all of the edge is staged
  bool seen_ = false;
  bool anyExposed_ = false;
  bool done_ = false;  // everything is read, and acknowledged if an acknowledgement is due
  std::uint32_t slotsKnown_ = 0;
  std::vector<RemoteInput> slots_;
  std::uint32_t move_ = 0;  // next copy of this edge
  SegmentCursor cursor_;
  bool cursorOpen_ = false;
  std::span<const std::byte> frame_;  // staged bytes being read; empty: none
  std::size_t read_ = 0;
  std::uint64_t taken_ = 0;  // staged bytes read so far
  Landings landings_;
};

}  // namespace shardwire::internal
