#include "backend/transport/mpi/mpi_lane.h"

#include <algorithm>
#include <cstring>

namespace shardwire::internal {

// The memory is not initialised: untouched pages cost nothing.
LaneMemory::LaneMemory(std::size_t capacityBytes, std::size_t maxFrame)
    : capacity(capacityBytes),
      maxMessage(granules(kMpiHeadBytes + maxFrame)),
      bytes(std::make_unique_for_overwrite<std::byte[]>(capacityBytes + maxMessage)) {}

std::span<std::byte> MpiLaneWriter::reserve(std::size_t minBytes, std::size_t maxBytes) {
  const std::size_t free = memory_.capacity - static_cast<std::size_t>(committed_ - std::min(released_, sent_));
  if (next_ - oldest_ == kMostInFlight || LaneMemory::granules(kMpiHeadBytes + minBytes) > free) {
    return {};
  }
  return {memory_.bytes.get() + offset_ + kMpiHeadBytes, std::min({maxBytes, maxFrame_, free - kMpiHeadBytes})};
}

std::span<std::byte> MpiLaneWriter::commit(std::size_t frameBytes, std::uint32_t* number) {
  const std::span<std::byte> message(memory_.bytes.get() + offset_, kMpiHeadBytes + frameBytes);
  committed_ += LaneMemory::granules(message.size());
  offset_ += LaneMemory::granules(message.size());
  offset_ = offset_ >= memory_.capacity ? 0 : offset_;
  *number = next_++;
  inFlight_[*number % kMostInFlight] = {committed_, false};
  return message;
}

void MpiLaneWriter::sent(std::uint32_t number) {
  inFlight_[number % kMostInFlight].isSent = true;
  for (; oldest_ != next_ && inFlight_[oldest_ % kMostInFlight].isSent; ++oldest_) {
    sent_ = inFlight_[oldest_ % kMostInFlight].end;
  }
}

bool MpiLaneWriter::releasedByPeer(std::uint32_t total) {
  const std::uint32_t more = total - static_cast<std::uint32_t>(released_);
  if (more > committed_ - released_) {
    // An older total is ignored: messages of one lane keep their order, but messages of different lanes do not.
    return static_cast<std::uint32_t>(released_) - total <= memory_.capacity;
  }
  released_ += more;
  return true;
}

std::span<std::byte> MpiLaneReader::post() {
  if (isPosted_ || memory_.maxMessage > memory_.capacity - static_cast<std::size_t>(received_ - released_)) {
    return {};
  }
  isPosted_ = true;
  return {memory_.bytes.get() + nextOffset_, memory_.maxMessage};
}

void MpiLaneReader::advance(std::size_t* offset, std::size_t granuleBytes) const {
  *offset += granuleBytes;
  *offset = *offset >= memory_.capacity ? 0 : *offset;
}

// The head was read before; its place now stores the message's length.
void MpiLaneReader::arrived(std::size_t messageBytes) {
  const std::uint64_t length = messageBytes;
  std::memcpy(memory_.bytes.get() + nextOffset_, &length, sizeof(length));
  received_ += LaneMemory::granules(messageBytes);
  advance(&nextOffset_, LaneMemory::granules(messageBytes));
  isPosted_ = false;
}

std::span<const std::byte> MpiLaneReader::peek() const {
  if (received_ == released_) {
    return {};
  }
  std::uint64_t length = 0;
  std::memcpy(&length, memory_.bytes.get() + firstOffset_, sizeof(length));
  return {memory_.bytes.get() + firstOffset_ + kMpiHeadBytes, static_cast<std::size_t>(length) - kMpiHeadBytes};
}

void MpiLaneReader::release() {
  const std::size_t granuleBytes = LaneMemory::granules(kMpiHeadBytes + peek().size());
  released_ += granuleBytes;
  advance(&firstOffset_, granuleBytes);
}

}  // namespace shardwire::internal
