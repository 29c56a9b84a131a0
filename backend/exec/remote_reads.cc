// A box of this rank is filled from a box of a peer's memory. Both consist of runs, of different lengths, and hold the
// same elements in row-major order; so the two lists of runs are cut against each other into pieces that are contiguous
// on both sides, and the transport gets the pieces. Where local runs are so short that the pieces would be tiny, the
// box is read as a whole and unpacked: at once (copy), or on arrival (Landings). The owner decided before the offer
// whether the remote runs are long enough.
#include "backend/exec/remote_reads.h"

#include <algorithm>

#include "ops/boxes/cast_box.h"

namespace shardwire::internal {

namespace {

// Local runs shorter than this are not worth an entry each in a scatter read: the box is read whole and unpacked.
constexpr std::size_t kMinScatterRun = 512;

std::size_t longestRun(const StridedBox& box, const Dims& shape, std::size_t elemBytes) {
  std::size_t run = 0;
  countRuns(box, shape, elemBytes, &run);
  return run;
}

}  // namespace

std::span<const MemoryRun> RemoteReads::runsInto(const StridedBox& local, std::size_t localRun, const RemoteBox& box) {
  localRuns_.clear();
  forEachRun(local, box.shape, box.elemBytes(), [&](std::byte* run, std::size_t) { localRuns_.push_back(run); });
  runs_.clear();
  std::size_t localDone = 0;
  // forEachRun only computes addresses, so an address of another process works, too.
  const StridedBox remote{reinterpret_cast<std::byte*>(box.address()), box.input.byteStrides};
  forEachRun(remote, box.shape, box.elemBytes(), [&](std::byte* run, std::size_t runBytes) {
    auto address = reinterpret_cast<std::uint64_t>(run);
    while (runBytes > 0) {
      const std::size_t part = std::min(runBytes, localRun - localDone % localRun);
      runs_.push_back({localRuns_[localDone / localRun] + localDone % localRun, address, part});
      localDone += part;
      address += part;
      runBytes -= part;
    }
  });
  return runs_;
}

Status RemoteReads::copy(PeerReads& owner, const StridedBox& dst, DType dstDtype, const RemoteBox& box) {
  const std::size_t bytes = box.bytes();
  if (dstDtype == box.dtype) {
    const std::size_t localRun = longestRun(dst, box.shape, box.elemBytes());
    if (localRun >= std::min(kMinScatterRun, bytes)) {
      return owner.read(runsInto(dst, localRun, box));
    }
  }
  const StridedBox packed = packedBox(run_.context().scratch(bytes).data(), box.shape, box.elemBytes());
  SW_RETURN_IF_ERROR(owner.read(runsInto(packed, bytes, box)));
  unpackCastBox(dst, dstDtype, packed.bytes, box.dtype, box.shape, run_.hint);
  return Status::ok();
}

bool Landings::start(PeerFetches& owner, std::size_t minLocalRun, const StridedBox& dst, DType dstDtype,
                     const RemoteBox& box) {
  const std::size_t bytes = box.bytes();
  const std::size_t localRun = longestRun(dst, box.shape, elementBytes(dstDtype));
  const bool isPacked = dstDtype != box.dtype || localRun < std::min(minLocalRun, bytes);
  if (!isPacked && run_.staging == nullptr) {
    return owner.fetch(box.input.space, reads_.runsInto(dst, localRun, box), &straight_);
  }
  const auto free = std::find_if(landings_.begin(), landings_.end(), [](const Landing& each) { return !each.inUse; });
  if (free == landings_.end()) {
    return false;
  }
  if (isPacked && free->packed.size() < bytes) {
    free->packed.resize(bytes);
  }
  const StridedBox local = isPacked ? packedBox(free->packed.data(), box.shape, box.elemBytes()) : dst;
  free->inUse = owner.fetch(box.input.space, reads_.runsInto(local, isPacked ? bytes : localRun, box), &free->fetches);
  free->isPacked = isPacked;
  free->dst = dst;
  free->shape = box.shape;
  free->dtype = box.dtype;
  free->dstDtype = dstDtype;
  return free->inUse;
}

bool Landings::take() {
  bool moved = false;
  for (Landing& each : landings_) {
    if (!each.inUse || each.fetches.pending > 0) {
      continue;
    }
    if (each.isPacked) {
      unpackCastBox(each.dst, each.dstDtype, each.packed.data(), each.dtype, each.shape, run_.hint);
    }
    run_.wrote(each.dst, each.shape, elementBytes(each.dstDtype));
    each.inUse = false;
    moved = true;
  }
  return moved;
}

bool Landings::isFetching() const {
  return straight_.pending > 0 ||
         std::any_of(landings_.begin(), landings_.end(), [](const Landing& each) { return each.inUse; });
}

}  // namespace shardwire::internal
