// FrameMemory makes and registers the rings. FrameLanes sends and receives frames. commit() and flush() post one RDMA
// write for all unsent bytes of a lane (flushLane()), within the window of the peer's receives; the write's immediate
// announces the bytes. onImmediate() handles the peer's immediates: new frames, credit, returned receives, and notes.
// The function also posts receives again, and flushes waiting bytes. sendCredits() sends the credit and the returns
// that are due.
#include "backend/transport/rdma/frame_lanes.h"

#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/base/memfd.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

// An immediate, from the highest bit: kind, lane, whether a frame comes without header, the frame's padding, amount.
enum class Said : std::uint32_t { kFrames = 0, kReleased = 1, kReturned = 2, kNote = 3 };
constexpr int kSaidShift = 30;
constexpr int kLaneShift = 28;
constexpr std::uint32_t kLaneMask = 3;
constexpr std::uint32_t kBare = std::uint32_t{1} << 27;
constexpr int kPaddingShift = 24;
constexpr std::uint32_t kPaddingMask = 7;
constexpr std::uint32_t kAmountMask = (std::uint32_t{1} << kPaddingShift) - 1;
// Amounts of bytes are in units of 8, since frames are padded to multiples of 8.
constexpr std::uint64_t kUnit = 8;
static_assert(kUnit == kPaddingMask + 1 && sizeof(RingHeader) == kUnit);
static_assert(kNumWireLanes <= kLaneMask + 1);

std::uint32_t encode(Said said, std::size_t lane, std::uint64_t amount) {
  return static_cast<std::uint32_t>(said) << kSaidShift | static_cast<std::uint32_t>(lane) << kLaneShift |
         static_cast<std::uint32_t>(amount);
}

// Receives for frames, out of 256; the rest is for returns (4), credits (5 for each lane) and notes.
constexpr std::uint32_t kWindow = 160;
constexpr std::uint32_t kReturnEvery = 40;
constexpr std::uint32_t kPostEvery = 16;
static_assert(kWindow + kPostEvery + kWindow / kReturnEvery + 5 * kNumWireLanes + 4 < FrameLanes::kDepth.receives);

// Control frames first, since peers wait for control frames.
constexpr std::array<std::size_t, kNumWireLanes> kFlushOrder = {0, kRequestLane, 2, 1};
constexpr std::array<const char*, kNumWireLanes> kLaneNames = {"control", "bulk", "point", "request"};

// The payload bytes of the frame at `at`, if this frame with its padding fills `size` bytes; else 0.
std::size_t soleFrameBytes(const std::byte* at, std::uint64_t size) {
  RingHeader header;
  std::memcpy(&header, at, sizeof(header));
  const std::uint64_t whole = (sizeof(header) + header.bytes + kUnit - 1) / kUnit * kUnit;
  return header.kind == kFrame && whole == size ? header.bytes : 0;
}

}  // namespace

std::size_t FrameMemory::inOffset(std::size_t lane) const {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < lane; ++i) {
    offset += laneBytes_[i];
  }
  return offset;
}

Result<std::unique_ptr<FrameMemory>> FrameMemory::create(RdmaFabric& fabric, const Rail& rail,
                                                         const LaneBytes& laneBytes) {
  for (const std::uint64_t bytes : laneBytes) {
    if (bytes / kUnit > kAmountMask) {
      return Status{StatusCode::kInvalidArgument,
                    fmt::format("SHARDWIRE_RING_BYTES asks for a ring of {} bytes; rdma takes at most {}", bytes,
                                kAmountMask * kUnit)};
    }
  }
  std::unique_ptr<FrameMemory> memory(new FrameMemory(fabric.api()));
  memory->laneBytes_ = laneBytes;
  const std::size_t size = 2 * memory->inOffset(kNumWireLanes);
  // Shared, not private, memory: otherwise a write after fork() could move this process to a copy of a page, while the
  // device and the child keep the registered page.
  auto fd = makeMemfd("shardwire-frames", size);
  SW_RETURN_IF_ERROR(fd.status());
  auto mapping = Mapping::shared(fd->get(), 0, size, Access::kReadWrite, "the rings of an RDMA connection");
  SW_RETURN_IF_ERROR(mapping.status());
  memory->mapping_ = std::move(*mapping);
  errno = 0;
  memory->region_ = fabric.api().regMr(fabric.device(rail.device).pd(), memory->bytes(), size,
                                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (memory->region_ == nullptr) {
    const char* advice =
        errno == ENOMEM ? " (the memlock limit is too low: ulimit -l unlimited; or lower SHARDWIRE_RING_BYTES)" : "";
    return systemError(fmt::format("{}: ibv_reg_mr of {} bytes of rings{}", toString(rail.address), size, advice),
                       errno);
  }
  return memory;
}

FrameMemory::~FrameMemory() {
  if (region_ != nullptr) {
    api_.deregMr(region_);
  }
}

FrameLanes::FrameLanes(std::unique_ptr<FrameMemory> memory, std::unique_ptr<QueuePair> queue, std::uint64_t remote,
                       std::uint32_t remoteKey)
    : memory_(std::move(memory)), queue_(std::move(queue)), remote_(remote), remoteKey_(remoteKey) {
  for (std::size_t lane = 0; lane < kNumWireLanes; ++lane) {
    const std::size_t bytes = memory_->laneBytes()[lane];
    out_[lane].writer =
        RingWriter(&out_[lane].words, memory_->bytes() + memory_->outOffset(lane), bytes, Publish::kCount);
    in_[lane].reader = RingReader(&in_[lane].words, memory_->bytes() + memory_->inOffset(lane), bytes, Publish::kCount);
  }
}

std::span<std::byte> FrameLanes::reserve(std::size_t lane, std::size_t minBytes, std::size_t maxBytes) {
  return out_[lane].writer.reserve(minBytes, maxBytes);
}

void FrameLanes::commit(std::size_t lane, std::size_t bytes) {
  Out& out = out_[lane];
  out.writer.commit(bytes);
  const std::uint64_t committed = out.words.written.load(std::memory_order_relaxed);
  const std::uint64_t capacity = memory_->laneBytes()[lane];
  const std::uint64_t toEnd = capacity - (out.committed & (capacity - 1));
  if (committed - out.committed > toEnd) {
    out.skipAt =
        out.committed;  // frames are contiguous: a skip marker ends this lap, and the frame begins the next lap
  }
  out.committed = committed;
  flushLane(lane);
}

bool FrameLanes::release(std::size_t lane) {
  In& in = in_[lane];
  in.reader.release();
  const std::uint64_t owed = in.words.released.load(std::memory_order_relaxed) - in.credited;
  const std::uint64_t capacity = memory_->laneBytes()[lane];
  if (owed >= capacity / 2) {  // with less than half owed, the longest frame fits at any position
    sendCredits();
    return false;
  }
  return owed >= capacity / 4;
}

bool FrameLanes::flushLane(std::size_t lane) {
  Out& out = out_[lane];
  const std::uint64_t capacity = memory_->laneBytes()[lane];
  while (out.posted != out.committed) {
    if (inWindow_ >= kWindow || !queue_->hasRoom()) {
      return false;
    }
    const std::uint64_t position = out.posted & (capacity - 1);
    std::uint64_t step = std::min(out.committed - out.posted, capacity - position);
    std::uint64_t bytes = step;
    if (out.skipAt >= out.posted && out.skipAt < out.posted + step) {
      bytes = out.skipAt + sizeof(RingHeader) - out.posted;  // the peer reads only the marker of a skip
    }
    const bool isWhole = bytes <= QueuePair::kMaxWriteBytes;
    if (!isWhole) {
      bytes = step = QueuePair::kMaxWriteBytes;  // announced with the rest, since the reader must not see half a frame
    }
    const std::byte* const local = memory_->bytes() + memory_->outOffset(lane) + position;
    RdmaWrite write;
    write.localKey = memory_->localKey();
    write.remoteKey = remoteKey_;
    if (isWhole) {
      write.immediate = encode(Said::kFrames, lane, (out.posted + step - out.announced) / kUnit);
    }
    // A single frame is sent without its header, which the peer makes from the immediate. So a frame whose payload
    // fills whole packets needs no further packet for the header.
    const std::size_t payload = isWhole && out.announced == out.posted ? soleFrameBytes(local, step) : 0;
    const std::size_t skipped = payload > 0 ? sizeof(RingHeader) : 0;
    if (payload > 0) {
      *write.immediate |= kBare | static_cast<std::uint32_t>(step - skipped - payload) << kPaddingShift;
    }
    write.local = local + skipped;
    write.remote = remote_ + memory_->inOffset(lane) + position + skipped;
    write.bytes = payload > 0 ? payload : bytes;
    if (!queue_->write(write)) {
      return false;
    }
    out.posted += step;
    if (isWhole) {
      out.announced = out.posted;
      ++inWindow_;
    }
  }
  return true;
}

void FrameLanes::flush() {
  sendCredits();
  for (const std::size_t lane : kFlushOrder) {
    flushLane(lane);
  }
}

bool FrameLanes::isFlushed() const {
  return std::all_of(out_.begin(), out_.end(), [](const Out& out) { return out.posted == out.committed; });
}

void FrameLanes::sendCredits() {
  for (std::size_t lane = 0; lane < kNumWireLanes; ++lane) {
    In& in = in_[lane];
    const std::uint64_t released = in.words.released.load(std::memory_order_relaxed);
    if (released - in.credited >= memory_->laneBytes()[lane] / 4 &&
        sendImmediate(encode(Said::kReleased, lane, (released - in.credited) / kUnit), false)) {
      in.credited = released;
    }
  }
  if (toReturn_ >= kReturnEvery && sendImmediate(encode(Said::kReturned, 0, toReturn_), false)) {
    toReturn_ = 0;
  }
}

bool FrameLanes::sendImmediate(std::uint32_t immediate, bool isSignalled) {
  RdmaWrite write;
  write.remote = remote_;
  write.remoteKey = remoteKey_;
  write.immediate = immediate;
  write.isSignalled = isSignalled;
  return queue_->write(write);
}

bool FrameLanes::sendNote(Note note) {
  return sendImmediate(encode(Said::kNote, 0, static_cast<std::uint32_t>(note)), true);
}

bool FrameLanes::probe() {
  RdmaWrite write;
  write.remote = remote_;
  write.remoteKey = remoteKey_;
  write.isSignalled = true;
  return queue_->write(write);
}

Note FrameLanes::onImmediate(std::uint32_t immediate) {
  if (++toPost_ >= kPostEvery) {
    queue_->postReceives(toPost_);
    toPost_ = 0;
  }
  const auto lane = static_cast<std::size_t>(immediate >> kLaneShift & kLaneMask);
  const std::uint32_t amount = immediate & kAmountMask;
  Note note = Note::kNone;
  switch (static_cast<Said>(immediate >> kSaidShift)) {
    case Said::kFrames:
      if ((immediate & kBare) != 0 && !makeHeader(lane, amount * kUnit, immediate >> kPaddingShift & kPaddingMask)) {
        isBroken_ = true;
        return Note::kNone;
      }
      // Relaxed: the device has written the bytes before the completion, and the reader is this thread.
      in_[lane].words.written.fetch_add(amount * kUnit, std::memory_order_relaxed);
      ++toReturn_;
      break;
    case Said::kReleased:
      // The bytes may be overwritten, even before the completion of our write arrives here: the peer has received all
      // of them, and only acknowledges packets that our device sends again.
      out_[lane].words.released.fetch_add(amount * kUnit, std::memory_order_relaxed);
      break;
    case Said::kReturned:
      isBroken_ = isBroken_ || amount > inWindow_;
      inWindow_ -= std::min(inWindow_, amount);
      break;
    case Said::kNote:
      note = static_cast<Note>(amount);
      break;
  }
  flush();
  return note;
}

bool FrameLanes::makeHeader(std::size_t lane, std::uint64_t size, std::uint64_t padding) {
  const std::uint64_t capacity = memory_->laneBytes()[lane];
  const std::uint64_t position = in_[lane].words.written.load(std::memory_order_relaxed) & (capacity - 1);
  if (size <= sizeof(RingHeader) + padding || size > capacity - position) {
    return false;
  }
  const RingHeader header{static_cast<std::uint32_t>(size - sizeof(RingHeader) - padding), kFrame};
  std::memcpy(memory_->bytes() + memory_->inOffset(lane) + position, &header, sizeof(header));
  return true;
}

std::string FrameLanes::whatIsBroken() const {
  for (std::size_t lane = 0; lane < kNumWireLanes; ++lane) {
    if (out_[lane].writer.isBroken() || in_[lane].reader.isBroken()) {
      return fmt::format("the {} lane is corrupt", kLaneNames[lane]);
    }
  }
  if (isBroken_) {
    return "the peer returned more receives than it was sent frames, or announced a frame of impossible size";
  }
  return queue_->error() == 0 ? std::string()
                              : fmt::format("a request could not be posted on {}: {}", toString(queue_->rail().address),
                                            errnoText(queue_->error()));
}

}  // namespace shardwire::internal
