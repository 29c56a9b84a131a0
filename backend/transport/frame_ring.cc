#include "backend/transport/frame_ring.h"

#include <algorithm>
#include <cstring>

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

// Payloads start 8-byte aligned.
std::size_t padded(std::size_t bytes) {
  return (bytes + 7) & ~std::size_t{7};
}

void putHeader(std::byte* at, std::size_t bytes, std::uint32_t kind) {
  const RingHeader header{static_cast<std::uint32_t>(bytes), kind};
  std::memcpy(at, &header, kHeaderBytes);
}

}  // namespace

bool RingWriter::readReleased() {
  // Pairs with the store in RingReader::release(): the reader has finished with the bytes before the count. seq_cst,
  // because a writer without room arms its bell and then looks here once more.
  const std::uint64_t released = words_->released.load(std::memory_order_seq_cst);
  if (released < released_ || released > written_ || released % 8 != 0) {
    broken_ = true;
  } else {
    released_ = released;
  }
  return !broken_;
}

// The reader's cache line is fetched only once for each page. Frames of several KiB use the first pages again only in
// an exchange: a broadcast of 4 KiB after the other takes twice as long in lines that the reader has just read.
bool RingWriter::canRewind(std::size_t position, std::size_t frameBytes) {
  const bool beginsPage = (position - 1) / kPage != (position + frameBytes - 1) / kPage;
  const std::size_t from = frameBytes <= (isAnswered_ ? kExchangedFrame : kFetchedFrame) ? 1 : kLongWay;
  return rewindFrom_ != 0 && beginsPage && position >= std::max(from * rewindFrom_, frameBytes) && readReleased() &&
         released_ == written_;
}

std::span<std::byte> RingWriter::reserve(std::size_t minBytes, std::size_t maxBytes) {
  const std::size_t largest = maxRingFrameBytes(capacity_);
  SW_CHECK(minBytes >= 1 && minBytes <= largest && minBytes <= maxBytes);
  const std::size_t wanted = std::min(maxBytes, largest);
  const std::size_t position = written_ & (capacity_ - 1);
  const std::size_t toEnd = capacity_ - position;
  const bool fits = toEnd >= kHeaderBytes + padded(minBytes);
  skip_ = !fits || canRewind(position, kHeaderBytes + padded(wanted)) ? toEnd : 0;
  const std::size_t needed = skip_ + kHeaderBytes + padded(minBytes);
  const std::size_t hoped = skip_ + kHeaderBytes + padded(wanted);
  // The reader's cache line is fetched only when the last known count is not enough.
  if (broken_ || (room() < hoped && (!readReleased() || room() < needed))) {
    return {};
  }
  const std::size_t contiguous = skip_ > 0 ? capacity_ : toEnd;
  const std::size_t available = std::min(room() - skip_, contiguous) - kHeaderBytes;
  reserved_ = std::min(wanted, available);
  const std::size_t start = (position + skip_) & (capacity_ - 1);
  return {data_ + start + kHeaderBytes, reserved_};
}

void RingWriter::commit(std::size_t bytes) {
  SW_CHECK(reserved_ > 0 && bytes <= reserved_);
  reserved_ = 0;
  if (bytes == 0) {
    return;
  }
  const std::size_t position = written_ & (capacity_ - 1);
  if (skip_ > 0) {
    isAnswered_ = false;
    putHeader(data_ + position, skip_ - kHeaderBytes, kSkip);
  }
  putHeader(data_ + ((position + skip_) & (capacity_ - 1)), bytes, kFrame);
  const std::size_t total = kHeaderBytes + padded(bytes);
  written_ += skip_ + total;
  // Release: pairs with RingReader::readWritten(). seq_cst: the following load of the armed flag must not move before
  // this store.
  words_->written.store(written_, std::memory_order_seq_cst);
  if (rewindFrom_ != 0 && total <= (isAnswered_ ? kFetchedInExchange : kFetchedFrame)) {
    const std::byte* const next = data_ + (written_ & (capacity_ - 1));
    for (std::size_t i = 0; i < total + kLine; i += kLine) {
      fetchForWriting(next + i);
    }
  }
}

bool RingReader::readWritten() {
  // Pairs with the store in RingWriter::commit(). seq_cst, because a reader arms its bell and then looks here once
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
    if (written_ == released_ && (!readWritten() || written_ == released_)) {
      return {};
    }
    const std::size_t position = released_ & (capacity_ - 1);
    RingHeader header;
    std::memcpy(&header, data_ + position, kHeaderBytes);
    const std::size_t total = kHeaderBytes + padded(header.bytes);
    const bool fits = total <= capacity_ - position && total <= written_ - released_;
    if (!fits || (header.kind != kFrame && header.kind != kSkip) || (header.kind == kFrame && header.bytes == 0)) {
      broken_ = true;
      break;
    }
    if (header.kind == kFrame) {
      frameBytes_ = total;
      return {data_ + position + kHeaderBytes, header.bytes};
    }
    released_ += total;
  }
  return {};
}

void RingReader::release() {
  SW_CHECK(frameBytes_ > 0);
  released_ += frameBytes_;
  frameBytes_ = 0;
  // Release: pairs with RingWriter::readReleased(), after which the writer may overwrite the bytes. seq_cst: as in
  // commit().
  words_->released.store(released_, std::memory_order_seq_cst);
}

}  // namespace shardwire::internal
