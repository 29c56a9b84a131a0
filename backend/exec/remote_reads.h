// Reads of a peer's memory by one PlanRun: copied at once (Reach::kCopy), or requested and taken on arrival
// (Reach::kFetch). Under the group's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/exec/run_scope.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

// An input of a peer, as posted by the peer.
struct RemoteInput {
  Reach reach = Reach::kNone;
  const std::byte* base = nullptr;  // kDirect
  std::uint32_t space = 0;          // kFetch: the owner's exposure
  std::uint64_t address = 0;        // kCopy, kFetch: in the owner's address space
  Dims byteStrides;
};

// A box of a peer's input, and the type of the elements.
struct RemoteBox {
  const RemoteInput& input;
  const Dims& offset;
  const Dims& shape;
  DType dtype;

  std::size_t elemBytes() const { return elementBytes(dtype); }
  std::uint64_t address() const {
    return input.address + static_cast<std::uint64_t>(byteOffset(input.byteStrides, offset));
  }
  std::size_t bytes() const { return static_cast<std::size_t>(numElements(shape)) * elemBytes(); }
};

// One object for all edges of a run.
class RemoteReads {
 public:
  explicit RemoteReads(const RunScope& run) : run_(run) {}
  // kCopy: `dst` holds the box when the call returns ok, cast if the types differ. May use the context's scratch for
  // the cast, and for short runs of `dst`.
  Status copy(PeerReads& owner, const StridedBox& dst, DType dstDtype, const RemoteBox& box);
  // The pieces for filling `local`, which consists of runs of `localRun` bytes, from the box; valid until the next
  // call.
  std::span<const MemoryRun> runsInto(const StridedBox& local, std::size_t localRun, const RemoteBox& box);

 private:
  const RunScope& run_;
  std::vector<MemoryRun> runs_;
  std::vector<std::byte*> localRuns_;
};

// The fetches of one edge. Must not move while a fetch is under way.
class Landings {
 public:
  Landings(const RunScope& run, RemoteReads& reads) : run_(run), reads_(reads) {}
  // kFetch: requests the box; false when there is no room for requests now. Local runs shorter than `minLocalRun`
  // (ReadLimits) are not fetched into.
  bool start(PeerFetches& owner, std::size_t minLocalRun, const StridedBox& dst, DType dstDtype, const RemoteBox& box);
  // Takes arrived segments; true when at least one arrived.
  bool take();
  bool isFetching() const;

 private:
  // A segment with work to do on arrival: unpacking, into an output of another type or with runs too short for fetches,
  // or a report to the staging.
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
  static constexpr std::size_t kMaxLandings = 4;  // one is unpacked while the other landings are under way

  const RunScope& run_;
  RemoteReads& reads_;
  FetchCount straight_;  // into the output
  std::array<Landing, kMaxLandings> landings_;
};

}  // namespace shardwire::internal
