// Units out, then units in. flush() collects credits, control frames, notes and payload frames into a batch
// (fillBatch()) and sends the batch, over several calls if the socket is full. receive() reads into a staging buffer,
// or straight into the ring where the rest of a long frame is expected. parse() then splits the staged bytes into
// units, and beginUnit() checks each header against the lane's state before any byte enters a ring. Frames become
// visible to the reader only when their unit is complete (endUnit()). With checksums checkHeader() and checkPayload()
// come before.
#include "backend/transport/tcp/frame_stream.h"

#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "backend/base/crc32c.h"
#include "backend/transport/tcp/changed_bytes.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{64} << 10;
// A longer rest of a frame is received straight into the ring.
constexpr std::size_t kDirectBytes = std::size_t{8} << 10;
// A longer frame is sent in parts, so that an urgent frame waits for one part at most.
constexpr std::size_t kMaxUnitBytes = std::size_t{64} << 10;
constexpr std::size_t kBatchBytes = std::size_t{128} << 10;
// System calls of one receive() or flush(), since other connections must be served too.
constexpr int kMaxCalls = 16;

// Places in a header with checksums.
constexpr std::size_t kPayloadSumAt = 8;
constexpr std::size_t kHeaderSumAt = 12;

constexpr std::array<const char*, kNumLanes> kLaneNames = {"control", "bulk", "point"};

Status garbled(std::string_view what) {
  return {StatusCode::kMismatch, fmt::format("sent {}: a bug, or a foreign process wrote to this connection", what)};
}

}  // namespace

FrameStream::FrameStream(TcpStream stream, const std::array<std::uint64_t, kNumLanes>& capacities, bool hasChecksums)
    : stream_(std::move(stream)), hasChecksums_(hasChecksums), staged_(kStagingBytes) {
  batch_.hasChecksums = hasChecksums;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    LaneState& lane = lanes_[l];
    lane.capacity = capacities[l];
    // Not cleared: untouched pages cost nothing, and bytes are read only after they were written.
    lane.outBytes = std::make_unique_for_overwrite<std::byte[]>(lane.capacity);
    lane.inBytes = std::make_unique_for_overwrite<std::byte[]>(lane.capacity);
    lane.writer = RingWriter(&lane.out, lane.outBytes.get(), lane.capacity, Publish::kCount);
    lane.reader = RingReader(&lane.in, lane.inBytes.get(), lane.capacity, Publish::kCount);
  }
}

bool FrameStream::owesCredit() const {
  // A sender needs at most half a lane to continue, so credit for up to an eighth may be delayed.
  return std::any_of(lanes_.begin(), lanes_.end(), [](const LaneState& lane) {
    return lane.in.released.load(std::memory_order_relaxed) - lane.credited >= lane.capacity / 8;
  });
}

bool FrameStream::Batch::isFull() const {
  return numUnits == kMaxUnits || bytes >= kBatchBytes;
}

void FrameStream::Batch::add(UnitType type, std::uint8_t tag, std::uint8_t flags, std::size_t unitBytes,
                             const void* payload) {
  auto& header = headers[numUnits++];
  header = {static_cast<std::byte>(type), static_cast<std::byte>(tag), static_cast<std::byte>(flags), std::byte{0}};
  const auto size = static_cast<std::uint32_t>(unitBytes);
  std::memcpy(header.data() + 4, &size, sizeof size);
  std::size_t headerBytes = kUnitHeaderBytes;
  if (hasChecksums) {
    const std::uint32_t sum = payload == nullptr ? 0 : crc32c(payload, unitBytes);
    std::memcpy(header.data() + kPayloadSumAt, &sum, sizeof sum);
    headerSum = crc32c(header.data(), kHeaderSumAt, headerSum);
    std::memcpy(header.data() + kHeaderSumAt, &headerSum, sizeof headerSum);
    headerBytes = kCheckedHeaderBytes;
  }
  pieces[numPieces++] = {header.data(), headerBytes};
  bytes += headerBytes;
  if (payload != nullptr && unitBytes > 0) {
    pieces[numPieces++] = {const_cast<void*>(payload), unitBytes};
    bytes += unitBytes;
  }
}

void FrameStream::Batch::advance(std::size_t sentBytes) {
  while (sentBytes > 0) {
    iovec& piece = pieces[nextPiece];
    const std::size_t some = std::min(sentBytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + some;
    piece.iov_len -= some;
    sentBytes -= some;
    nextPiece += piece.iov_len == 0 ? 1 : 0;
  }
}

void FrameStream::addCredit(Lane lane) {
  LaneState& state = lanes_[indexOf(lane)];
  const std::uint64_t released = state.in.released.load(std::memory_order_relaxed);
  if (released > state.credited) {
    batch_.add(UnitType::kCredit, static_cast<std::uint8_t>(lane), 0, released - state.credited, nullptr);
    state.credited = released;
  }
}

std::size_t FrameStream::LaneState::unsentFrames() const {
  const std::uint64_t written = out.written.load(std::memory_order_relaxed);
  const std::size_t position = sent & (capacity - 1);
  std::size_t bytes = 0;
  while (sent + bytes < written && position + bytes < capacity && bytes < kMaxUnitBytes) {
    RingHeader header;
    std::memcpy(&header, outBytes.get() + position + bytes, sizeof(header));
    if (header.kind == kSkip) {
      break;
    }
    bytes += sizeof(header) + ((std::size_t{header.bytes} + 7) & ~std::size_t{7});
  }
  return bytes;
}

// Consecutive frames are sent as one unit, a long frame in parts.
void FrameStream::addFrames(Lane lane) {
  LaneState& state = lanes_[indexOf(lane)];
  const auto tag = static_cast<std::uint8_t>(lane);
  while (state.sent < state.out.written.load(std::memory_order_relaxed) && !batch_.isFull()) {
    const std::size_t position = state.sent & (state.capacity - 1);
    if (state.sent == state.frameEnd) {
      state.frameEnd += state.unsentFrames();
    }
    if (state.sent == state.frameEnd) {  // a skip, which extends to the end of the ring
      const std::size_t bytes = state.capacity - position;
      batch_.add(UnitType::kSkip, tag, 0, bytes, nullptr);
      state.sent += bytes;
      state.frameEnd = state.sent;
      continue;
    }
    const std::size_t bytes = std::min<std::size_t>(state.frameEnd - state.sent, kMaxUnitBytes);
    const bool more = state.sent + bytes < state.frameEnd;
    batch_.add(UnitType::kFrames, tag, more ? kMore : 0, bytes, state.outBytes.get() + position);
    state.sent += bytes;
  }
}

void FrameStream::fillBatch() {
  for (; batch_.numNotes > 0; --batch_.numNotes) {
    notesOut_.pop_front();
  }
  batch_.numUnits = batch_.numPieces = batch_.nextPiece = batch_.bytes = 0;
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    addCredit(lane);
  }
  addFrames(Lane::kControl);
  while (batch_.numNotes < notesOut_.size() && !batch_.isFull()) {
    const StreamNote& note = notesOut_[batch_.numNotes++];
    batch_.add(UnitType::kNote, note.kind, 0, note.bytes.size(), note.bytes.data());
  }
  addFrames(Lane::kPoint);
  addFrames(Lane::kBulk);
}

Status FrameStream::flush(bool* moved) {
  isBlocked_ = false;
  for (int call = 0; call < kMaxCalls; ++call) {
    if (batch_.nextPiece == batch_.numPieces) {
      fillBatch();
      if (batch_.numPieces == 0) {
        return Status::ok();
      }
    }
    const ssize_t sent =
        stream_.send(std::span(batch_.pieces).subspan(batch_.nextPiece, batch_.numPieces - batch_.nextPiece));
    if (sent >= 0) {
      batch_.advance(static_cast<std::size_t>(sent));
      *moved = true;
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return stream_.error("sending frames");
    }
  }
  // Also when the limit of calls is reached: the socket is then writable, so the next poll() continues at once.
  isBlocked_ = true;
  return Status::ok();
}

std::byte* FrameStream::placeInLane() {
  LaneState& lane = lanes_[unit_.tag];
  return lane.inBytes.get() + (lane.arrived & (lane.capacity - 1));
}

void FrameStream::take(std::size_t bytes) {
  unit_.missing -= bytes;
  if (unit_.type == UnitType::kFrames) {
    lanes_[unit_.tag].arrived += bytes;
  }
}

Status FrameStream::receive(bool* moved) {
  for (int call = 0; (call < kMaxCalls || stream_.holdsBytes()) && !isEnded_; ++call) {
    std::array<iovec, 2> places;
    std::size_t numPlaces = 0;
    std::size_t direct = 0;
    if (inUnit_ && unit_.type == UnitType::kFrames && unit_.missing >= kDirectBytes) {  // no bytes are staged here
      direct = unit_.missing;
      places[numPlaces++] = {placeInLane(), direct};
    }
    const std::size_t room = staged_.size() - stagedTo_;
    places[numPlaces++] = {staged_.data() + stagedTo_, room};
    const std::span<const iovec> all = std::span(places).first(numPlaces);
    const ssize_t size = call < kMaxCalls ? stream_.receive(all) : stream_.receiveHeld(all);
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size < 0 && errno == EAGAIN) {
      return Status::ok();
    }
    if (size < 0) {
      return stream_.error("receiving frames");
    }
    isEnded_ = size == 0;
    *moved |= size > 0;
    const std::size_t taken = std::min(static_cast<std::size_t>(size), direct);
    if (taken > 0) {
      take(taken);
      if (unit_.missing == 0) {
        SW_RETURN_IF_ERROR(endUnit());
      }
    }
    stagedTo_ += static_cast<std::size_t>(size) - taken;
    SW_RETURN_IF_ERROR(parse());
    if (static_cast<std::size_t>(size) < direct + room && !stream_.holdsError()) {
      return Status::ok();  // the socket is empty: one more call would only confirm this
    }
  }
  return Status::ok();
}

Status FrameStream::parse() {
  const std::size_t headerBytes = hasChecksums_ ? kCheckedHeaderBytes : kUnitHeaderBytes;
  while (stagedFrom_ < stagedTo_) {
    const std::size_t there = stagedTo_ - stagedFrom_;
    const std::byte* bytes = staged_.data() + stagedFrom_;
    if (!inUnit_) {
      if (there < headerBytes) {
        break;
      }
      if (hasChecksums_) {
        SW_RETURN_IF_ERROR(checkHeader(bytes));
      }
      SW_RETURN_IF_ERROR(beginUnit(bytes));
      stagedFrom_ += headerBytes;
    } else {
      const std::size_t some = std::min(there, unit_.missing);
      if (unit_.type == UnitType::kFrames) {
        std::memcpy(placeInLane(), bytes, some);
      } else {
        noteIn_.bytes.append(reinterpret_cast<const char*>(bytes), some);
      }
      take(some);
      stagedFrom_ += some;
    }
    if (inUnit_ && unit_.missing == 0) {
      SW_RETURN_IF_ERROR(endUnit());
    }
  }
  const std::size_t rest = stagedTo_ - stagedFrom_;
  if (rest > 0 && stagedFrom_ > 0) {
    std::memmove(staged_.data(), staged_.data() + stagedFrom_, rest);
  }
  stagedFrom_ = 0;
  stagedTo_ = rest;
  return Status::ok();
}

// Before any field is used: a wrong length would be a wait for bytes that never come.
Status FrameStream::checkHeader(const std::byte* header) {
  std::uint32_t sent = 0;
  std::memcpy(&sent, header + kHeaderSumAt, sizeof sent);
  headerSumIn_ = crc32c(header, kHeaderSumAt, headerSumIn_);
  return headerSumIn_ == sent ? Status::ok() : changedBytes("the header of a unit of frames", headerSumIn_, sent);
}

Status FrameStream::checkPayload() const {
  const bool isNote = unit_.type == UnitType::kNote;
  const void* payload = noteIn_.bytes.data();
  if (!isNote) {
    // A unit is contiguous in the ring. Its end may be the ring's end.
    const LaneState& lane = lanes_[unit_.tag];
    payload = lane.inBytes.get() + ((lane.arrived - unit_.bytes) & (lane.capacity - 1));
  }
  const std::uint32_t found = crc32c(payload, unit_.bytes);
  if (found == unit_.sum) {
    return Status::ok();
  }
  return changedBytes(isNote ? fmt::format("a note of {} bytes", unit_.bytes)
                             : fmt::format("{} bytes of the {} lane", unit_.bytes, kLaneNames[unit_.tag]),
                      found, unit_.sum);
}

Status FrameStream::beginUnit(const std::byte* header) {
  unit_ = {static_cast<UnitType>(header[0]), static_cast<std::uint8_t>(header[1]),
           static_cast<std::uint8_t>(header[2])};
  std::uint32_t bytes = 0;
  std::memcpy(&bytes, header + 4, sizeof bytes);
  unit_.bytes = bytes;
  if (hasChecksums_) {
    std::memcpy(&unit_.sum, header + kPayloadSumAt, sizeof unit_.sum);
  }
  if (header[3] != std::byte{0} || (unit_.flags & ~kMore) != 0) {
    return garbled("a malformed unit header");
  }
  if (unit_.type == UnitType::kNote) {
    if (bytes > kMaxNoteBytes) {
      return garbled(fmt::format("a note of {} bytes", bytes));
    }
    noteIn_ = {unit_.tag, {}};
    unit_.missing = bytes;
    inUnit_ = true;
    return Status::ok();
  }
  if (unit_.tag >= kNumLanes) {
    return garbled(fmt::format("a unit of lane {}", static_cast<int>(unit_.tag)));
  }
  return beginLaneUnit(lanes_[unit_.tag], bytes);
}

Status FrameStream::beginLaneUnit(LaneState& lane, std::size_t bytes) {
  const char* name = kLaneNames[unit_.tag];
  if (unit_.type == UnitType::kCredit) {
    const std::uint64_t released = lane.out.released.load(std::memory_order_relaxed) + bytes;
    if (bytes == 0 || bytes % 8 != 0 || released > lane.sent) {
      return garbled(fmt::format("credit for {} bytes of the {} lane that were never sent", bytes, name));
    }
    lane.out.released.store(released, std::memory_order_relaxed);
    return Status::ok();
  }
  const std::size_t position = lane.arrived & (lane.capacity - 1);
  const std::size_t room = lane.capacity - (lane.arrived - lane.in.released.load(std::memory_order_relaxed));
  if (bytes == 0 || bytes % 8 != 0 || bytes > room || bytes > lane.capacity - position) {
    return garbled(fmt::format("{} bytes for the {} lane, which has room for {}", bytes, name, room));
  }
  if (unit_.type == UnitType::kSkip) {
    if (position + bytes != lane.capacity || lane.arrived != lane.in.written.load(std::memory_order_relaxed)) {
      return garbled("a skip in the middle of a lane");
    }
    const RingHeader header{static_cast<std::uint32_t>(bytes - sizeof(RingHeader)), kSkip};
    std::memcpy(lane.inBytes.get() + position, &header, sizeof(header));
    lane.arrived += bytes;
    lane.in.written.store(lane.arrived, std::memory_order_relaxed);
    return Status::ok();
  }
  if (unit_.type != UnitType::kFrames) {
    return garbled("a unit of unknown type");
  }
  unit_.missing = bytes;
  inUnit_ = true;
  return Status::ok();
}

Status FrameStream::endUnit() {
  if (hasChecksums_) {
    SW_RETURN_IF_ERROR(checkPayload());
  }
  inUnit_ = false;
  if (unit_.type == UnitType::kNote) {
    notesIn_.push_back(std::move(noteIn_));
  } else if ((unit_.flags & kMore) == 0) {
    LaneState& lane = lanes_[unit_.tag];
    lane.in.written.store(lane.arrived, std::memory_order_relaxed);  // relaxed: writer and reader are one thread
  }
  return Status::ok();
}

}  // namespace shardwire::internal
