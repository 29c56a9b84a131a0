// Reads of a peer's memory by one PlanRun: copied at once (Reach::kCopy), or asked for and taken when they are here (Reach::kFetch).
// Under the group's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/exec/run_scope.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

// An input of a peer, as the peer posted it.
struct RemoteInput {
  Reach reach = Reach::kNone;
  const std::byte* base = nullptr;  // kDirect
  std::uint32_t space = 0;          // kFetch: the owner's exposure
  std::uint64_t address = 0;        // kCopy, kFetch: in the owner's address space
  Dims byteStrides;
};

// A box of one, and what its elements are.
struct RemoteBox {
  const RemoteInput& input;
  const Dims& offset;
  const Dims& shape;
  DType dtype;

  std::size_t elemBytes() const { return elementBytes(dtype); }
  std::uint64_t address() const { return input.address + static_cast<std::uint64_t>(byteOffset(input.byteStrides, offset)); }
  std::size_t bytes() const { return static_cast<std::size_t>(numElements(shape)) * elemBytes(); }
};

// One for all edges of a run.
class RemoteReads {
 public:
  explicit RemoteReads(const RunScope& run) : run_(run) {}
  // kCopy: `dst` holds the box when this returns ok, cast if it is of another type. May use the context's scratch for that, and where runs
  // of `dst` are short.
  Status copy(PeerReads& owner, const StridedBox& dst, DType dstDtype, const RemoteBox& box);
  // How `local`, which consists of runs of `localRun` bytes, is filled from the box; valid until the next call.
  std::span<const MemoryRun> runsInto(const StridedBox& local, std::size_t localRun, const RemoteBox& box);

 private:
  const RunScope& run_;
  std::vector<MemoryRun> runs_;
  std::vector<std::byte*> localRuns_;
};

// The fetches of one edge. Stays where it is while any is under way.
class Landings {
 public:
  Landings(const RunScope& run, RemoteReads& reads) : run_(run), reads_(reads) {}
  // kFetch: asks for the box; false when there is no room to ask now. Local runs shorter than `minLocalRun` (ReadLimits) are not fetched
  // into.
  bool start(PeerFetches& owner, std::size_t minLocalRun, const StridedBox& dst, DType dstDtype, const RemoteBox& box);
  // Takes what has come; true when anything had.
  bool take();
  bool isFetching() const;

 private:
  // A segment that needs a hand when it is here: unpacking, into an output whose runs are too short to be fetched into or whose type is
  // another, or a word to the staging.
  struct Landing {
    bool inUse = false;
    bool isPacked = false;
    FetchCount fetches;
    std::vector<std::byte> packed;
    StridedBox dst;
    Dims shape;
    DType dtype = DType::kFloat32;
    DType dstDtype = DType::kFloat32;
  };
  static constexpr std::size_t kMaxLandings = 4;  // one is unpacked while the others are under way

  const RunScope& run_;
  RemoteReads& reads_;
  FetchCount straight_;  // into the output
  std::array<Landing, kMaxLandings> landings_;
};

}  // namespace shardwire::internal
