// The writer reserves a place for one frame, in front of the end of the ring or behind a skip at the beginning, and
// packs the frame there. commit() publishes the frame: by the count of bytes written, or by the frame's own header. The
// reader looks at the count or at the next header, returns the frame in place, and counts the frame as released. The
// writer reads this count only if the last known count does not suffice. Words and headers that cannot be right mark
// the ring as broken, and no access leaves the ring.
#include "backend/transport/frame_ring.h"

#include <algorithm>
#include <bit>

#include "backend/base/fence.h"
#include "backend/base/relax.h"
#include "shardwire/status.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kHeaderBytes = sizeof(RingHeader);
constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;
// Frames of up to this length begin anew at `rewindFrom` where the ranks exchange frames. Other frames begin anew at
// kLongWay times `rewindFrom`: a new page costs more than a KiB of copying, and in the first round all pages are new.
constexpr std::size_t kExchangedFrame = 33024;
constexpr std::size_t kLongWay = 4;
// Up to this length, the lines of the next frame are fetched from the reader's cache while the writer waits for an
// answer. More lines than these would hold up what the writer does next; in an exchange, the writer does nothing next.
constexpr std::size_t kFetchedFrame = 2304;
constexpr std::size_t kFetchedInExchange = 4224;
constexpr std::size_t kShortFrame = 512;  // see emptyHeaderBehind()

// Bytes of the ring that a payload takes, with header and padding to a multiple of the alignment.
std::size_t spanOf(std::size_t payload, std::size_t alignment) {
  return (kHeaderBytes + payload + alignment - 1) & ~(alignment - 1);
}

// Whether a frame at `position` is the first in one of its pages.
bool beginsPage(std::size_t position, std::size_t frameBytes) {
  return (position - 1) / kPage != (position + frameBytes - 1) / kPage;
}

constexpr std::uint64_t kEmptyHeader = 0;

std::uint64_t headerOf(std::size_t bytes, std::uint32_t kind) {
  return std::bit_cast<std::uint64_t>(RingHeader{static_cast<std::uint32_t>(bytes), kind});
}

std::atomic_ref<std::uint64_t> headerAt(const std::byte* place) {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(place)));  // takes no const object
}

}  // namespace

bool RingWriter::readReleased() {
  // Pairs with the store in RingReader::release(): the reader has finished with the bytes before the count. seq_cst,
  // because a writer without room arms its bell and then looks here once more.
  const std::uint64_t released = words_->released.load(std::memory_order_seq_cst);
  if (released < released_ || released > written_ || released % alignment_ != 0) {
    broken_ = true;
    roomUntil_ = 0;
  } else {
    released_ = released;
  }
  return !broken_;
}

// Without room, the writer asks the reader to ring. The reader may have released frames just before this request, so
// the writer looks again.
bool RingWriter::findRoom(std::size_t least) {
  if (!readReleased()) {
    return false;
  }
  if (room() >= least) {
    return true;
  }
  words_->awaitsRoom.store(1, std::memory_order_seq_cst);
  return readReleased() && room() >= least;
}

// The reader's cache line is fetched only once for each page. Frames of several KiB use the first pages again only in
// an exchange: a broadcast of 4 KiB after the other takes twice as long in lines that the reader has just read.
bool RingWriter::canRewind(std::size_t position, std::size_t frameBytes) {
  const std::size_t from = frameBytes <= (isAnswered_ ? kExchangedFrame : kFetchedFrame) ? 1 : kLongWay;
  return rewindFrom_ != 0 && position >= std::max(from * rewindFrom_, frameBytes + kLine) && readReleased() &&
         released_ == written_;
}

// Publish::kHeader needs a place for the empty header behind the last frame.
std::size_t RingWriter::room() const {
  return capacity_ - (written_ - released_) - (by_ == Publish::kHeader ? kLine : 0);
}

// Most short frames need no look at the reader's count, and no skip.
std::span<std::byte> RingWriter::reserve(std::size_t minBytes, std::size_t maxBytes) {
  const std::uint64_t frameEnd = written_ + spanOf(maxBytes, alignment_);
  if (frameEnd > roomUntil_ || maxBytes > kShortFrame || minBytes < 1 || minBytes > maxBytes) {
    return reserveSlowly(minBytes, maxBytes);
  }
  skip_ = 0;
  reserved_ = maxBytes;
  emptyHeaderBehind(frameEnd);
  return {data_ + (written_ & (capacity_ - 1)) + kHeaderBytes, maxBytes};
}

std::span<std::byte> RingWriter::reserveSlowly(std::size_t minBytes, std::size_t maxBytes) {
  const std::size_t largest = maxLaneFrameBytes(capacity_);
  SW_CHECK(minBytes >= 1 && minBytes <= largest && minBytes <= maxBytes);
  const std::size_t wanted = std::min(maxBytes, largest);
  const std::size_t least = spanOf(minBytes, alignment_);
  const std::size_t most = spanOf(wanted, alignment_);
  const std::size_t position = written_ & (capacity_ - 1);
  const std::size_t toEnd = capacity_ - position;
  const std::size_t skip = toEnd < least || (beginsPage(position, most) && canRewind(position, most)) ? toEnd : 0;
  // The reader's cache line is fetched only when the last known count is not enough.
  if (broken_ || (room() < skip + most && !findRoom(skip + least))) {
    return {};
  }
  const std::size_t contiguous = skip > 0 ? capacity_ : toEnd;
  const std::size_t available = std::min(room() - skip, contiguous) - kHeaderBytes;
  skip_ = skip;
  reserved_ = std::min(wanted, available);
  if (reserved_ <= kShortFrame) {
    emptyHeaderBehind(written_ + skip + spanOf(reserved_, alignment_));
  }
  const std::size_t start = (position + skip) & (capacity_ - 1);
  return {data_ + start + kHeaderBytes, reserved_};
}

void RingWriter::commit(std::size_t bytes) {
  SW_CHECK(reserved_ > 0 && bytes <= reserved_);
  reserved_ = 0;
  if (bytes == 0) {
    return;
  }
  const std::size_t position = written_ & (capacity_ - 1);
  isAnswered_ = isAnswered_ && skip_ == 0;
  const std::size_t total = spanOf(bytes, alignment_);
  written_ += skip_ + total;
  if (written_ > roomUntil_ && capacity_ >= kPage) {
    const std::uint64_t pageEnd = (written_ + kPage - 1) / kPage * kPage;  // the first frame of a page may rewind
    roomUntil_ = std::min(pageEnd, written_ + room());
  }
  publish(position, bytes);
  if (rewindFrom_ != 0 && total <= (isAnswered_ ? kFetchedInExchange : kFetchedFrame)) {
    fetchLinesOfNext(total);
  }
}

// For a short frame this is called before the payload is written, so that the last stores all go to one line: the
// polling reader would take that line between two stores that are not close together.
void RingWriter::emptyHeaderBehind(std::uint64_t frameEnd) {
  if (by_ == Publish::kHeader && frameEnd != emptied_) {
    headerAt(data_ + (frameEnd & (capacity_ - 1))).store(kEmptyHeader, std::memory_order_relaxed);
    emptied_ = frameEnd;
  }
}

// Pairs with the loads in RingReader::readWritten and RingReader::peek. The following load of the armed flag must not
// move before the last store: a fence, since a seq_cst store would leave the reader time to take the header's line.
void RingWriter::publish(std::size_t position, std::size_t bytes) {
  const auto header = [this](std::size_t at) { return headerAt(data_ + (at & (capacity_ - 1))); };
  const std::uint64_t frame = headerOf(bytes, kFrame);
  const std::uint64_t first = skip_ > 0 ? headerOf(skip_ - kHeaderBytes, kSkip) : frame;
  if (skip_ > 0) {
    header(position + skip_).store(frame, std::memory_order_relaxed);
  }
  emptyHeaderBehind(written_);
  header(position).store(first, std::memory_order_release);
  if (by_ == Publish::kCount) {
    words_->written.store(written_, std::memory_order_release);
  }
  fullFence();
}

// Not the first line, at which the reader polls.
void RingWriter::fetchLinesOfNext(std::size_t frameBytes) const {
  const std::byte* const next = data_ + (written_ & (capacity_ - 1));
  for (std::size_t i = kLine; i <= frameBytes; i += kLine) {
    fetchForWriting(next + i);
  }
}

bool RingReader::readWritten() {
  // Pairs with the store in RingWriter::publish. seq_cst, because a reader arms its bell and then looks here once
  // more.
  const std::uint64_t written = words_->written.load(std::memory_order_seq_cst);
  if (written < written_ || written - released_ > capacity_ || written % 8 != 0) {
    broken_ = true;
  } else {
    written_ = written;
  }
  return !broken_;
}

std::span<const std::byte> RingReader::peek() {
  while (!broken_) {
    if (by_ == Publish::kCount && written_ == released_ && (!readWritten() || written_ == released_)) {
      return {};
    }
    const std::size_t position = released_ & (capacity_ - 1);
    // Pairs with the store in RingWriter::publish. seq_cst, because a reader arms its bell and then looks here once
    // more.
    const std::uint64_t word = headerAt(data_ + position).load(std::memory_order_seq_cst);
    if (by_ == Publish::kHeader && word == kEmptyHeader) {
      return {};
    }
    const auto header = std::bit_cast<RingHeader>(word);
    const std::size_t total = spanOf(header.bytes, alignment_);
    const std::size_t toEnd = capacity_ - position;
    const bool arrived = by_ == Publish::kHeader || total <= written_ - released_;
    if (arrived && header.kind == kFrame && header.bytes > 0 && total <= toEnd) {
      frameBytes_ = total;
      return {data_ + position + kHeaderBytes, header.bytes};
    }
    // A skip covers all up to the end, and none begins the ring: a foreign writer's skips would follow one another for
    // ever.
    if (!arrived || header.kind != kSkip || total != toEnd || position == 0) {
      broken_ = true;
      break;
    }
    released_ += total;
  }
  return {};
}

bool RingReader::release() {
  SW_CHECK(frameBytes_ > 0);
  released_ += frameBytes_;
  frameBytes_ = 0;
  // Release: pairs with RingWriter::readReleased(), after which the writer may overwrite the bytes. seq_cst: as in
  // RingWriter::publish.
  words_->released.store(released_, std::memory_order_seq_cst);
  return words_->awaitsRoom.load(std::memory_order_seq_cst) != 0 &&
         words_->awaitsRoom.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace shardwire::internal
