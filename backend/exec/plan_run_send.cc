// The sending half of a run: choose a path for each input, post what peers read themselves, pack what must be staged.
#include <algorithm>
#include <span>

#include "backend/exec/engine.h"
#include "backend/exec/plan_run.h"

namespace shardwire::internal {

namespace {

// From here on packing stores past the cache: lines that are dirty in this core's cache come to the reading core far slower than lines from
// memory do. Shorter payloads are better off in the cache, where they arrive sooner.
constexpr std::uint64_t kStreamFrom = std::uint64_t{256} << 10;

std::size_t extentBytes(const TensorView& view) {
  return extentBytes(boxOf(view, Dims::filled(view.shape.size(), 0)), view.shape, elementBytes(view.dtype));
}

}  // namespace

// Reading pays per run: tensors that would be read in crumbs are staged instead. And what arrives later cannot be combined with what is
// here now without keeping it, so over a wire the peer's combines get frames.
Reach PlanRun::chooseReach(Connection& connection, const PlanEdge& edge, std::size_t slot, RemoteAddress* address) {
  const ReadLimits limits = connection.readLimits();
  const TensorView& view = inputs_[static_cast<std::size_t>(edge.inputs[slot])];
  const auto isWorthReading = [&](std::uint32_t first, std::uint32_t end) {
    std::size_t bytes = 0;
    std::uint64_t runs = 0;
    for (std::uint32_t i = first; i < end; ++i) {
      const PlanSendItem& item = plan_->sendItems[edge.first + i];
      if (item.slot == static_cast<std::int32_t>(slot)) {
        runs += countRuns(boxOf(view, item.offset), item.shape, elementBytes(view.dtype));
        bytes += static_cast<std::size_t>(numElements(item.shape)) * elementBytes(view.dtype);
      }
    }
    return bytes >= limits.minRunBytes * runs;
  };
  const auto isCombined = [&] {
    const auto items = std::span(plan_->sendItems).subspan(edge.first + edge.numCopies, edge.count - edge.numCopies);
    return std::any_of(items.begin(), items.end(), [&](const PlanSendItem& item) { return item.slot == static_cast<std::int32_t>(slot); });
  };
  if (limits.isWire && (isCombined() || !isWorthReading(0, edge.numCopies))) {
    return Reach::kNone;  // before expose(), which may cost a registration
  }
  const std::size_t extent = extentBytes(view);
  if (staging_ != nullptr && !staging_->isReady(view.bytes, extent)) {
    return Reach::kNone;  // what still comes from a device goes on in pieces, as it comes
  }
  const Reach reach = connection.expose(view.bytes, extent, address);
  return reach == Reach::kCopy && !isWorthReading(0, edge.count) ? Reach::kNone : reach;
}

bool PlanRun::isSilent(Engine& engine, const PlanEdge& edge) {
  return edge.bytes <= engine.options().inlineBytes || edge.bytes < engine.connection(edge.peer)->readLimits().minEdgeBytes;
}

void PlanRun::choosePaths(Engine& engine, std::size_t index) {
  const PlanEdge& edge = plan_->sends[index];
  SendState& state = sends_[index];
  state.started = true;
  state.item = 0;
  Connection& connection = *engine.connection(edge.peer);
  if (isSilent(engine, edge)) {
    state.silent = state.anyStaged = true;
    std::fill(state.reach.begin(), state.reach.end(), Reach::kNone);
    return;
  }
  for (std::size_t slot = 0; slot < edge.inputs.size(); ++slot) {
    state.reach[slot] = chooseReach(connection, edge, slot, &state.address[slot]);
    (state.reach[slot] == Reach::kNone ? state.anyStaged : state.anyExposed) = true;
  }
}

void PlanRun::conceal(Engine& engine, const PlanEdge& edge, SendState& state) {
  for (std::size_t slot = 0; slot < edge.inputs.size(); ++slot) {
    if (state.reach[slot] == Reach::kFetch) {
      engine.connection(edge.peer)->conceal(state.address[slot]);
    }
  }
}

bool PlanRun::stepSend(Engine& engine, std::size_t index, std::vector<bool>& blockedBulk) {
  const PlanEdge& edge = plan_->sends[index];
  SendState& state = sends_[index];
  if (state.done) {
    return false;
  }
  bool moved = false;
  if (!state.started) {
    choosePaths(engine, index);
    moved = true;
  }
  if (!state.silent && state.slotsPosted < edge.inputs.size()) {
    moved |= postSlots(engine, index);
  }
  bool packed = !state.anyStaged;
  if (state.anyStaged) {
    std::vector<bool>::reference blocked = blockedBulk[static_cast<std::size_t>(edge.peer)];
    if (state.item < edge.count && !blocked) {
      moved |= packSome(engine, index);
    }
    packed = state.item == edge.count;
    if (!packed) {
      blocked = true;
    }
  }
  const bool posted = state.silent || state.slotsPosted == edge.inputs.size();
  if (posted && packed && (state.acked || !state.anyExposed)) {
    conceal(engine, edge, state);
    state.done = true;
    moved = true;
  }
  return moved;
}

bool PlanRun::postSlots(Engine& engine, std::size_t index) {
  const PlanEdge& edge = plan_->sends[index];
  SendState& state = sends_[index];
  Connection& connection = *engine.connection(edge.peer);
  bool moved = false;
  const auto entryBytes = [&](std::uint32_t slot) {
    const TensorView& view = inputs_[static_cast<std::size_t>(edge.inputs[slot])];
    return sizeof(PostEntry) + static_cast<std::size_t>(view.shape.size()) * sizeof(std::int64_t);
  };
  while (state.slotsPosted < edge.inputs.size()) {
    std::uint32_t end = state.slotsPosted;
    std::size_t bytes = sizeof(FrameHeader);
    while (end < edge.inputs.size() && bytes + entryBytes(end) <= connection.maxFrameBytes(Lane::kControl)) {
      bytes += entryBytes(end++);
    }
    const auto frame = connection.reserve(Lane::kControl, bytes, bytes);
    if (frame.empty()) {
      return moved;
    }
    writeHeader(frame, {.kind = FrameKind::kPost,
                        .payloadBytes = static_cast<std::uint32_t>(bytes - sizeof(FrameHeader)),
                        .seq = seq,
                        .fingerprint = fingerprint,
                        .a = state.slotsPosted,
                        .b = end - state.slotsPosted});
    std::byte* out = frame.data() + sizeof(FrameHeader);
    for (; state.slotsPosted < end; ++state.slotsPosted) {
      const std::uint32_t slot = state.slotsPosted;
      const TensorView& view = inputs_[static_cast<std::size_t>(edge.inputs[slot])];
      const PostEntry entry{.reach = static_cast<std::uint8_t>(state.reach[slot]),
                            .numDims = static_cast<std::uint8_t>(view.shape.size()),
                            .space = state.address[slot].space,
                            .address = state.address[slot].value};
      std::memcpy(out, &entry, sizeof entry);
      out += sizeof entry;
      for (const std::int64_t stride : view.strides) {
        const std::int64_t byteStride = stride * static_cast<std::int64_t>(elementBytes(view.dtype));
        std::memcpy(out, &byteStride, sizeof byteStride);
        out += sizeof byteStride;
      }
    }
    connection.commit(Lane::kControl, bytes);
    moved = true;
  }
  return moved;
}

bool PlanRun::openGroup(SendState& state, const PlanEdge& edge, std::size_t segmentBytes) {
  while (state.item < edge.count) {
    const PlanSendItem* items = &plan_->sendItems[edge.first];
    state.groupEnd = state.item + 1;
    bool staged = state.reach[static_cast<std::size_t>(items[state.item].slot)] == Reach::kNone;
    while (state.groupEnd < edge.count && items[state.groupEnd].withPrevious) {
      staged |= state.reach[static_cast<std::size_t>(items[state.groupEnd].slot)] == Reach::kNone;
      ++state.groupEnd;
    }
    if (staged) {
      const PlanSendItem& item = items[state.item];
      state.cursor = SegmentCursor(item.shape, elementBytes(plan_->inputs[static_cast<std::size_t>(item.input)].dtype), segmentBytes);
      state.inGroup = state.item;
      return true;
    }
    state.item = state.groupEnd;
  }
  return false;
}

void PlanRun::commitFrame(Engine& engine, const PlanEdge& edge, SendState& state) {
  if (state.frame.empty()) {
    return;
  }
  writeHeader(state.frame, {.kind = FrameKind::kBytes,
                            .flags = state.silent ? kNoPost : std::uint16_t{0},
                            .payloadBytes = static_cast<std::uint32_t>(state.filled - sizeof(FrameHeader)),
                            .seq = seq,
                            .fingerprint = fingerprint,
                            .a = static_cast<std::uint32_t>(engine.segmentBytes())});
  engine.connection(edge.peer)->commit(Lane::kBulk, state.filled);
  state.frame = {};
}

bool PlanRun::packSome(Engine& engine, std::size_t index) {
  const PlanEdge& edge = plan_->sends[index];
  SendState& state = sends_[index];
  Connection& connection = *engine.connection(edge.peer);
  // A short edge takes no more of the ring than it needs.
  const std::size_t wanted = sizeof(FrameHeader) + std::min<std::size_t>(engine.segmentBytes(), edge.bytes);
  // What fits one frame comes in one: a peer whose whole plan is short takes nothing else.
  const bool inOneFrame = state.silent && edge.bytes <= engine.segmentBytes();
  bool moved = false;
  while (!state.cursor.done() || openGroup(state, edge, engine.segmentBytes())) {
    for (; state.inGroup < state.groupEnd; ++state.inGroup) {
      const PlanSendItem& item = plan_->sendItems[edge.first + state.inGroup];
      if (state.reach[static_cast<std::size_t>(item.slot)] != Reach::kNone) {
        continue;
      }
      const std::size_t bytes = state.cursor.bytes();
      const TensorView& view = inputs_[static_cast<std::size_t>(item.input)];
      Dims offset = item.offset;
      for (int d = 0; d < offset.size(); ++d) {
        offset[d] += state.cursor.offset()[d];
      }
      const StridedBox box = boxOf(view, offset);
      if (!isReady(box, state.cursor.shape(), elementBytes(view.dtype))) {
        return moved;
      }
      if (state.frame.size() < state.filled + bytes || state.frame.empty()) {
        commitFrame(engine, edge, state);
        state.frame = connection.reserve(Lane::kBulk, inOneFrame ? wanted : sizeof(FrameHeader) + bytes,
                                         std::max(wanted, sizeof(FrameHeader) + bytes));
        if (state.frame.empty()) {
          return moved;
        }
        state.filled = sizeof(FrameHeader);
      }
      state.filled += packBox(state.frame.data() + state.filled, box, state.cursor.shape(), elementBytes(view.dtype),
                              edge.bytes >= kStreamFrom ? StoreHint::kStream : StoreHint::kCached);
      moved = true;
    }
    state.inGroup = state.item;
    state.cursor.next();
    if (state.cursor.done()) {
      state.item = state.groupEnd;
    }
  }
  commitFrame(engine, edge, state);
  return moved;
}

}  // namespace shardwire::internal
