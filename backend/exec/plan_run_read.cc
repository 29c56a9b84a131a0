// The part of a run that reads peers' memory: at once (kCopy), or asked for and taken when it is there (kFetch).
#include <algorithm>

#include "backend/exec/engine.h"
#include "backend/exec/plan_run.h"

namespace shardwire::internal {

namespace {

// Local runs shorter than this are not worth an entry each in a scatter read: the box is read whole and unpacked.
constexpr std::size_t kMinScatterRun = 512;

}  // namespace

Status PlanRun::readBox(Engine& engine, Connection& connection, const StridedBox& dst, const RemoteInput& source, const Dims& sourceOffset,
                        const Dims& shape, std::size_t elemBytes) {
  const std::uint64_t remote = source.address + static_cast<std::uint64_t>(byteOffset(source.byteStrides, sourceOffset));
  const std::size_t bytes = static_cast<std::size_t>(numElements(shape)) * elemBytes;
  std::size_t localRun = longestRun(dst, shape, elemBytes);
  const bool unpack = localRun < std::min(kMinScatterRun, bytes);
  StridedBox local = dst;
  if (unpack) {
    local = {engine.scratch(bytes).data(), packedByteStrides(shape, elemBytes)};
    localRun = bytes;
  }
  makeRuns(local, localRun, remote, source.byteStrides, shape, elemBytes);
  SW_RETURN_IF_ERROR(connection.read(runs_));
  if (unpack) {
    unpackBox(dst, local.bytes, shape, elemBytes, hint_);
  }
  return Status::ok();
}

std::size_t PlanRun::longestRun(const StridedBox& box, const Dims& shape, std::size_t elemBytes) {
  std::size_t run = 0;
  countRuns(box, shape, elemBytes, &run);
  return run;
}

bool PlanRun::startFetch(Engine& engine, const PlanEdge& edge, ReceiveState& state, const StridedBox& dst, const RemoteInput& source,
                         const Dims& sourceOffset, const Dims& shape, std::size_t elemBytes) {
  Connection& connection = *engine.connection(edge.peer);
  const std::uint64_t remote = source.address + static_cast<std::uint64_t>(byteOffset(source.byteStrides, sourceOffset));
  const std::size_t bytes = static_cast<std::size_t>(numElements(shape)) * elemBytes;
  const std::size_t localRun = longestRun(dst, shape, elemBytes);
  const bool isPacked = localRun < std::min(connection.readLimits().minLocalRunBytes, bytes);
  if (!isPacked && staging_ == nullptr) {
    makeRuns(dst, localRun, remote, source.byteStrides, shape, elemBytes);
    return connection.fetch(source.space, runs_, &state.fetches);
  }
  const auto free = std::find_if(state.landings.begin(), state.landings.end(), [](const Landing& each) { return !each.inUse; });
  if (free == state.landings.end()) {
    return false;
  }
  if (isPacked && free->packed.size() < bytes) {
    free->packed.resize(bytes);
  }
  const StridedBox local = isPacked ? StridedBox{free->packed.data(), packedByteStrides(shape, elemBytes)} : dst;
  makeRuns(local, isPacked ? bytes : localRun, remote, source.byteStrides, shape, elemBytes);
  free->inUse = connection.fetch(source.space, runs_, &free->fetches);
  free->isPacked = isPacked;
  free->dst = dst;
  free->shape = shape;
  free->elemBytes = elemBytes;
  return free->inUse;
}

bool PlanRun::takeLandings(ReceiveState& state) {
  bool moved = false;
  for (Landing& each : state.landings) {
    if (!each.inUse || each.fetches.pending > 0) {
      continue;
    }
    if (each.isPacked) {
      unpackBox(each.dst, each.packed.data(), each.shape, each.elemBytes, hint_);
    }
    wrote(each.dst, each.shape, each.elemBytes);
    each.inUse = false;
    moved = true;
  }
  return moved;
}

void PlanRun::makeRuns(const StridedBox& local, std::size_t localRun, std::uint64_t remote, const Dims& remoteStrides, const Dims& shape,
                       std::size_t elemBytes) {
  localRuns_.clear();
  forEachRun(local, shape, elemBytes, [&](std::byte* run, std::size_t) { localRuns_.push_back(run); });
  // Both sides go through the same elements in row-major order, each in runs of its own length.
  runs_.clear();
  std::size_t localDone = 0;
  // forEachRun only computes addresses, so an address of another process is as good as any.
  forEachRun({reinterpret_cast<std::byte*>(remote), remoteStrides}, shape, elemBytes, [&](std::byte* run, std::size_t runBytes) {
    auto address = reinterpret_cast<std::uint64_t>(run);
    while (runBytes > 0) {
      const std::size_t part = std::min(runBytes, localRun - localDone % localRun);
      runs_.push_back({localRuns_[localDone / localRun] + localDone % localRun, address, part});
      localDone += part;
      address += part;
      runBytes -= part;
    }
  });
}

// What peers may fetch from, and what is fetched into; staged boxes need no pins.
void PlanRun::pinTensors(Engine& engine) {
  isPinned_ = true;
  const auto isFetched = [&](const PlanEdge& edge) { return engine.connection(edge.peer)->readLimits().isWire && !isSilent(engine, edge); };
  std::vector<bool> isRead(inputs_.size());
  for (const PlanEdge& edge : plan_->sends) {
    const std::uint32_t end = isFetched(edge) ? edge.first + edge.numCopies : edge.first;
    for (std::uint32_t i = edge.first; i < end; ++i) {
      isRead[static_cast<std::size_t>(plan_->sendItems[i].input)] = true;
    }
  }
  std::vector<bool> isWritten(outputs_.size());
  for (const PlanEdge& edge : plan_->receives) {
    const std::uint32_t end = isFetched(edge) ? edge.first + edge.count : edge.first;
    for (std::uint32_t i = edge.first; i < end; ++i) {
      isWritten[static_cast<std::size_t>(plan_->moves[i].output)] = true;
    }
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (isRead[i]) {
      pins_.add(engine.wires(), inputs_[i], false);
    }
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (isWritten[i]) {
      pins_.add(engine.wires(), outputs_[i], true);
    }
  }
}

void PlanRun::keepPins(bool keeps) {
  keepsPins_ = keeps;
  if (!keeps && isDone()) {
    pins_.release();
    isPinned_ = false;
  }
}

}  // namespace shardwire::internal
