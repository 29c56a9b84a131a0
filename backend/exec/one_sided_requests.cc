// A box is cut into pieces, each of which fits into one control frame with the piece's description. A cursor keeps the
// place while the lane is full. A put ends when the last piece is in a frame, and the peer answers nothing; each piece
// of a get is a separate request, whose answer is unpacked into this piece. A request for a word waits for the word's
// value from before, unless the request is silent. A quiet request sends each peer a flush, which the peer answers when
// all earlier requests are done, and lists the ranks whose answer is missing.
#include "backend/exec/one_sided_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/bootstrap/summary.h"
#include "ops/boxes/copy_box.h"

namespace shardwire::internal {
namespace {

// The description of the box in a frame, without extents, strides and elements.
PartTag tagOf(const PartBox& box, const Dims& offset) {
  return {.block = box.block,
          .offset = box.offset + static_cast<std::uint64_t>(byteOffset(box.byteStrides, offset)),
          .elemBytes = static_cast<std::uint32_t>(box.elemBytes),
          .numDims = static_cast<std::uint32_t>(box.shape.size())};
}

std::byte* writeBox(std::byte* out, const Dims& shape, const Dims& byteStrides) {
  for (const Dims* dims : {&shape, &byteStrides}) {
    std::memcpy(out, dims->begin(), dims->span().size_bytes());
    out += dims->span().size_bytes();
  }
  return out;
}

std::size_t dimsBytes(const PartBox& box) {
  return 2 * box.shape.span().size_bytes();
}

SegmentCursor cut(const OneSided& all, Rank peer, const PartBox& box) {
  const std::size_t head = std::max(kHeadBytes<PutFrame>, kHeadBytes<ReplyFrame>) + dimsBytes(box);
  return {box.shape, box.elemBytes, all.context().connection(peer).maxFrameBytes(Lane::kControl) - head};
}

StridedBox boxAt(const StridedBox& box, const Dims& offset) {
  return {box.bytes + byteOffset(box.byteStrides, offset), box.byteStrides};
}

}  // namespace

// ---- put

PutRequest::PutRequest(Rank peer, const PartBox& to, const StridedBox& from) : peer_(peer), to_(to), from_(from) {}

bool PutRequest::send(OneSided& all, Rank peer) {
  Connection& connection = all.context().connection(peer);
  if (!next_.has_value()) {
    next_ = cut(all, peer, to_);
  }
  for (; !next_->done(); next_->next()) {
    const std::size_t payload = dimsBytes(to_) + next_->bytes();
    const auto room =
        connection.reserve(Lane::kControl, kHeadBytes<PutFrame> + payload, kHeadBytes<PutFrame> + payload);
    if (room.empty()) {
      return false;
    }
    writeFrame(room, PutFrame{tagOf(to_, next_->offset())}, payload);
    packBox(writeBox(room.data() + kHeadBytes<PutFrame>, next_->shape(), to_.byteStrides),
            boxAt(from_, next_->offset()), next_->shape(), to_.elemBytes);
    connection.commit(Lane::kControl, kHeadBytes<PutFrame> + payload);
    all.noteSilent(peer);
  }
  isSent_ = true;
  return true;
}

std::string PutRequest::waitingFor() const {
  return fmt::format("rank {} takes no more bytes", peer_);
}

void PutRequest::addTraffic(std::span<EdgeBytes> byPeer) const {
  byPeer[static_cast<std::size_t>(peer_)].sends += boxBytes(to_.shape, to_.elemBytes);
}

// ---- get

GetRequest::GetRequest(Rank peer, const PartBox& from, const StridedBox& to) : peer_(peer), from_(from), to_(to) {}

bool GetRequest::send(OneSided& all, Rank peer) {
  if (!next_.has_value()) {
    next_ = cut(all, peer, from_);
  }
  std::array<std::byte, 2 * kMaxDims * sizeof(std::int64_t)> box;
  for (; !next_->done(); next_->next()) {
    const std::uint64_t request = all.nextRequest(peer);
    writeBox(box.data(), next_->shape(), from_.byteStrides);
    const GetFrame frame{.part = tagOf(from_, next_->offset()), .request = request};
    if (request == 0 || !all.context().sendControl(peer, frame, Payload(box).first(dimsBytes(from_)))) {
      return false;
    }
    all.expect(peer, std::static_pointer_cast<GetRequest>(shared_from_this()),
               static_cast<std::uint32_t>(parts_.size()));
    parts_.push_back({next_->offset(), next_->shape()});
  }
  isSent_ = true;
  return true;
}

bool GetRequest::take(Payload elements, std::uint32_t part) {
  const Part& where = parts_[part];
  if (elements.size() != internal::boxBytes(where.shape, from_.elemBytes)) {
    return false;
  }
  unpackBox(boxAt(to_, where.offset), elements.data(), where.shape, from_.elemBytes);
  ++numTaken_;
  return true;
}

std::string GetRequest::waitingFor() const {
  return fmt::format("rank {} did not answer", peer_);
}

void GetRequest::addTraffic(std::span<EdgeBytes> byPeer) const {
  byPeer[static_cast<std::size_t>(peer_)].receives += boxBytes(from_.shape, from_.elemBytes);
}

// ---- words

bool WordRequest::send(OneSided& all, Rank peer) {
  if (isSilent_) {
    isSent_ = all.context().sendControl(peer, word_);
    if (isSent_) {
      all.noteSilent(peer);
    }
    return isSent_;
  }
  word_.request = all.nextRequest(peer);
  if (word_.request == 0 || !all.context().sendControl(peer, word_)) {
    return false;
  }
  all.expect(peer, std::static_pointer_cast<WordRequest>(shared_from_this()), 0);
  isSent_ = true;
  return true;
}

bool WordRequest::take(Payload elements, std::uint32_t) {
  if (elements.size() != sizeof before_) {
    return false;
  }
  std::memcpy(&before_, elements.data(), sizeof before_);
  isAnswered_ = true;
  return true;
}

std::string WordRequest::waitingFor() const {
  return fmt::format("rank {} did not answer", peer_);
}

// ---- quiet

bool QuietRequest::send(OneSided& all, Rank peer) {
  const std::uint64_t request = all.nextRequest(peer);
  if (request == 0 || !all.context().sendControl(peer, FlushFrame{request})) {
    return false;
  }
  all.noteFlush(peer);
  all.expect(peer, std::static_pointer_cast<QuietRequest>(shared_from_this()), static_cast<std::uint32_t>(peer));
  return true;
}

bool QuietRequest::take(Payload elements, std::uint32_t part) {
  std::erase(open_, static_cast<Rank>(part));
  return elements.empty();
}

bool QuietRequest::needs(Rank peer) const {
  return std::ranges::find(open_, peer) != open_.end();
}

std::string QuietRequest::waitingFor() const {
  return rankList(open_) + " did not say that all is done";
}

}  // namespace shardwire::internal
