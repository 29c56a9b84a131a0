// A caller's requests to one peer are sent in the order of their start: only the oldest request sends, as far as the
// control lane has room. Answers arrive in the same order, so an answer must carry the number of the oldest waiting
// request. An owner carries out each request on taking the request's frame. If the lane has no room for an answer, the
// owner owes the answer until pay() sends the answer; the elements are still read at once, since the peer's next
// request may change the elements. When a peer is gone or the group ends, the peer counts as having dropped each part
// reached by the peer's requests, so the owner can free the part.
#include "backend/exec/one_sided.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

namespace shardwire::internal {
namespace {

// The most unanswered requests of a caller to one peer.
constexpr std::size_t kMaxAsked = 64;

// Peers, in all groups, with requests that may not be done. seq_cst: only so that a sending thread sees its own count.
std::atomic<int> numUnquietPeers{0};

// The box at the beginning of a sound frame's payload. Returns nothing when the box differs from the box checked by
// isSound(): the frame lies in memory shared with the peer, so this function copies the box before the final check.
std::optional<PartBox> takeBox(const PartTag& tag, Payload payload, std::optional<std::size_t> elementBytes) {
  std::array<std::byte, std::size_t{2} * kMaxDims * sizeof(std::int64_t)> copy;
  const std::span<const std::byte> dims = std::span(copy).first(tag.boxBytes());
  std::memcpy(copy.data(), payload.data(), dims.size());
  const std::optional<std::size_t> bytes = tag.elementBytesIn(dims);
  if (!bytes.has_value() || *bytes != elementBytes.value_or(*bytes)) {
    return std::nullopt;
  }
  const auto numDims = static_cast<int>(tag.numDims);
  PartBox box{tag.block, tag.offset, tag.elemBytes, Dims::filled(numDims, 0), Dims::filled(numDims, 0)};
  std::memcpy(box.shape.begin(), dims.data(), dims.size() / 2);
  std::memcpy(box.byteStrides.begin(), dims.data() + dims.size() / 2, dims.size() / 2);
  return box;
}

Status changedMeanwhile(Rank from, std::uint64_t block) {
  return {StatusCode::kInternal,
          fmt::format(
              "a request of rank {} for symmetric memory #{} changed while it was read: a bug there, or a stray write",
              from, block)};
}

}  // namespace

bool OneSidedRequest::step(std::vector<bool>&) {
  return all_->step(*this);
}

OneSided::OneSided(RunContext& context)
    : context_(context),
      peers_(static_cast<std::size_t>(context.worldSize)),
      isGone_(static_cast<std::size_t>(context.worldSize)) {}

OneSided::~OneSided() {
  forget();
}

OneSided::Peer& OneSided::peer(Rank rank) {
  std::unique_ptr<Peer>& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>();
  }
  return *peer;
}

// ---- the caller's side

void OneSided::start(const std::shared_ptr<OneSidedRequest>& request, std::span<const Rank> peers) {
  request->all_ = this;
  for (const Rank rank : peers) {
    peer(rank).toSend.push_back(request);
    count(peer(rank));
  }
}

// Only the oldest request of each peer sends.
bool OneSided::step(OneSidedRequest& request) {
  bool moved = false;
  for (Rank rank = 0; rank < context_.worldSize; ++rank) {
    Peer* const peer = peerOrNull(rank);
    if (peer != nullptr && !peer->toSend.empty() && peer->toSend.front().get() == &request &&
        context_.connection(rank).isJoined() && request.send(*this, rank)) {
      peer->toSend.pop_front();
      count(*peer);
      moved = true;
    }
  }
  return moved;
}

Status OneSided::onReply(Rank from, const Received<ReplyFrame>& frame) {
  if (hasEnded_) {
    return Status::ok();
  }
  Peer& peer = this->peer(from);
  if (peer.awaited.empty() || frame.request != peer.lastRequest - peer.awaited.size() + 1) {
    return {StatusCode::kInternal, fmt::format("rank {} answers request {}, which nobody made", from, frame.request)};
  }
  const PendingReply reply = std::move(peer.awaited.front());
  peer.awaited.pop_front();
  count(peer);
  if (!reply.request->take(frame.payload, reply.part)) {
    return {StatusCode::kInternal, fmt::format("rank {} answered {} with {} bytes", from,
                                               reply.request->description.text(), frame.payload.size())};
  }
  return Status::ok();
}

std::vector<Rank> OneSided::unquiet() const {
  std::vector<Rank> ranks;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank] != nullptr && peers_[rank]->isUnquiet) {
      ranks.push_back(static_cast<Rank>(rank));
    }
  }
  return ranks;
}

void OneSided::count(Peer& peer) {
  const bool isUnquiet = !isForgotten_ && (peer.isDirty || !peer.toSend.empty() || !peer.awaited.empty());
  if (peer.isUnquiet != isUnquiet) {
    peer.isUnquiet = isUnquiet;
    numUnquietPeers.fetch_add(isUnquiet ? 1 : -1);
  }
}

std::uint64_t OneSided::nextRequest(Rank rank) const {
  const Peer* const peer = peerOrNull(rank);
  if (peer == nullptr) {
    return 1;
  }
  return peer->awaited.size() < kMaxAsked ? peer->lastRequest + 1 : 0;
}

void OneSided::expect(Rank rank, std::shared_ptr<OneSidedRequest> request, std::uint32_t part) {
  Peer& peer = this->peer(rank);
  ++peer.lastRequest;
  peer.awaited.push_back({std::move(request), part});
}

bool OneSided::isAllQuiet() {
  return numUnquietPeers.load() == 0;
}

void OneSided::forget() {
  isForgotten_ = true;
  for (const std::unique_ptr<Peer>& each : peers_) {
    if (each != nullptr) {
      count(*each);
    }
  }
}

// ---- the owner's side

void OneSided::serve(std::uint64_t block, std::shared_ptr<ServedPart> part) {
  served_.insert_or_assign(block, Served{std::move(part), {}});
}

void OneSided::expectRequests(std::uint64_t block, std::vector<Rank> askers) {
  Served& served = served_.at(block);
  served.askers = std::move(askers);
  ++numAsked_;
  for (const Rank peer : served.askers) {
    if (hasEnded_ || isGone_[static_cast<std::size_t>(peer)]) {
      served.part->dropped(peer);
    }
  }
}

void OneSided::withdraw(std::uint64_t block) {
  if (const auto found = served_.find(block); found != served_.end()) {
    numAsked_ -= found->second.askers.empty() ? 0 : 1;
    served_.erase(found);
  }
}

Status OneSided::find(Rank from, std::uint64_t block, ServedPart** part) const {
  const auto found = served_.find(block);
  *part = nullptr;
  if (hasEnded_ || (found == served_.end() && isGone_[static_cast<std::size_t>(from)])) {
    return Status::ok();
  }
  if (found == served_.end()) {
    return {StatusCode::kInternal, fmt::format("rank {} asked for symmetric memory #{}, which rank {} does not have",
                                               from, block, context_.rank)};
  }
  *part = found->second.part.get();
  return Status::ok();
}

Status OneSided::onPut(Rank from, const Received<PutFrame>& frame) {
  ServedPart* part = nullptr;
  SW_RETURN_IF_ERROR(find(from, frame.part.block, &part));
  if (part == nullptr) {
    return Status::ok();
  }
  const Payload elements = frame.payload.subspan(frame.part.boxBytes());
  const std::optional<PartBox> box = takeBox(frame.part, frame.payload, elements.size());
  return box.has_value() ? part->put(*box, elements) : changedMeanwhile(from, frame.part.block);
}

Status OneSided::onGet(Rank from, const Received<GetFrame>& frame) {
  ServedPart* part = nullptr;
  SW_RETURN_IF_ERROR(find(from, frame.part.block, &part));
  if (part == nullptr) {
    return Status::ok();
  }
  const std::optional<PartBox> box = takeBox(frame.part, frame.payload, std::nullopt);
  if (!box.has_value()) {
    return changedMeanwhile(from, frame.part.block);
  }
  if (kHeadBytes<ReplyFrame> + boxBytes(box->shape, box->elemBytes) >
      context_.connection(from).maxFrameBytes(Lane::kControl)) {
    return {StatusCode::kInternal,
            fmt::format("rank {} asked for more than one frame of symmetric memory #{}", from, box->block)};
  }
  return owe(from, {.request = frame.request, .isBox = true, .box = *box});
}

Status OneSided::onWord(Rank from, const Received<WordFrame>& frame) {
  ServedPart* part = nullptr;
  SW_RETURN_IF_ERROR(find(from, frame.block, &part));
  if (part == nullptr) {
    return Status::ok();
  }
  const auto before = part->apply(frame);
  SW_RETURN_IF_ERROR(before.status());
  return frame.request == 0 ? Status::ok()
                            : owe(from, {.request = frame.request, .word = *before, .isWord = true, .box = {}});
}

Status OneSided::onFlush(Rank from, const Received<FlushFrame>& frame) {
  return owe(from, {.request = frame.request, .box = {}});
}

Status OneSided::onDrop(Rank from, const Received<DropFrame>& frame) {
  if (const auto found = served_.find(frame.block); found != served_.end()) {
    found->second.part->dropped(from);
  }
  return Status::ok();
}

void OneSided::drop(Rank peer, std::uint64_t block) {
  if (!hasEnded_) {
    (void)owe(peer, {.word = block, .box = {}});
  }
}

Status OneSided::owe(Rank to, Owed owed) {
  if (hasEnded_) {
    return Status::ok();
  }
  auto& all = peer(to).owed;
  if (all.empty()) {
    const auto isSent = sendOwed(to, owed);
    SW_RETURN_IF_ERROR(isSent.status());
    if (*isSent) {
      return Status::ok();
    }
  }
  if (owed.isBox) {
    // The next request of this peer is carried out at once, and may change the elements.
    ServedPart* part = nullptr;
    SW_RETURN_IF_ERROR(find(to, owed.box.block, &part));
    if (part == nullptr) {
      return Status::ok();
    }
    owed.elements.resize(boxBytes(owed.box.shape, owed.box.elemBytes));
    SW_RETURN_IF_ERROR(part->get(owed.box, owed.elements.data()));
    owed.isBox = false;
  }
  all.push_back(std::move(owed));
  ++numOwed_;
  return Status::ok();
}

// False: there is no room now.
Result<bool> OneSided::sendOwed(Rank to, const Owed& owed) {
  if (owed.request == 0) {
    return context_.sendControl(to, DropFrame{owed.word});
  }
  if (!owed.isBox) {
    const auto word = std::as_bytes(std::span(&owed.word, 1));
    return context_.sendControl(to, ReplyFrame{owed.request}, owed.isWord ? word : Payload(owed.elements));
  }
  ServedPart* part = nullptr;
  SW_RETURN_IF_ERROR(find(to, owed.box.block, &part));
  if (part == nullptr) {
    return true;
  }
  Connection& connection = context_.connection(to);
  const std::size_t bytes = boxBytes(owed.box.shape, owed.box.elemBytes);
  const std::size_t frameBytes = kHeadBytes<ReplyFrame> + bytes;
  const auto room = connection.reserve(Lane::kControl, frameBytes, frameBytes);
  if (room.empty()) {
    return false;
  }
  writeFrame(room, ReplyFrame{owed.request}, bytes);
  SW_RETURN_IF_ERROR(part->get(owed.box, room.data() + kHeadBytes<ReplyFrame>));
  connection.commit(Lane::kControl, frameBytes);
  return true;
}

bool OneSided::pay() {
  bool moved = false;
  for (Rank rank = 0; rank < context_.worldSize && !hasEnded_; ++rank) {
    Peer* const peer = peerOrNull(rank);
    while (peer != nullptr && !peer->owed.empty()) {
      const auto isSent = sendOwed(rank, peer->owed.front());
      if (!isSent.isOk()) {
        context_.fail(isSent.status());
        return true;
      }
      if (!*isSent) {
        break;
      }
      peer->owed.pop_front();
      --numOwed_;
      moved = true;
    }
  }
  return moved;
}

void OneSided::gone(Rank peer) {
  isGone_[static_cast<std::size_t>(peer)] = true;
  // A peer that has the part mapped marks its own end, also when the group has ended.
  for (const auto& [block, served] : served_) {
    if (std::ranges::find(served.askers, peer) != served.askers.end()) {
      served.part->dropped(peer);
    }
  }
}

void OneSided::end() {
  if (std::exchange(hasEnded_, true)) {
    return;
  }
  for (const std::unique_ptr<Peer>& each : peers_) {
    if (each != nullptr) {
      each->owed.clear();
    }
  }
  numOwed_ = 0;
  for (Rank rank = 0; rank < context_.worldSize; ++rank) {
    if (rank != context_.rank) {
      gone(rank);
    }
  }
}

}  // namespace shardwire::internal
