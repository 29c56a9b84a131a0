// Messages between two ranks are matched by tag, in the order of issue. So a sender announces messages in this
// order, and a receiver takes the oldest announced message that fits (unexpected messages wait here). A short
// message is its own announcement. A longer message is offered: the receiver reads the message in the sender's
// memory and confirms the read (taken). A receiver unable to read there, or sooner served by the sender's own copy
// (ReadOrStage), asks for the message (grant), and gets parts on the point lane, one message after the other in the
// order of the grants. The point lane carries only requested messages, so a message without a receiver never blocks
// the lane. A recv that was given up leaves its tag, by which the late message is dropped.
#include "backend/exec/point_to_point.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/base/copy_few.h"
#include "backend/exec/over_in_call.h"

namespace shardwire::internal {

namespace {

// One step reads at most this much, so that other operations make progress in between.
constexpr std::size_t kReadPiece = std::size_t{4} << 20;

// Bytes of a frame on the point lane before the message's bytes.
constexpr std::size_t kPartHead = kHeadBytes<MessagePartFrame>;
// The parts of a message below kStreamStagedFrom: the receiver copies one part while the sender packs the next part.
constexpr std::size_t kCachedPart = std::size_t{16} << 10;

// Messages above RunContext::inlineBytes are sent eagerly up to this many bytes in all. Then one message is offered,
// and the answer to the offer shows that the peer takes messages. So a peer that takes none keeps at most this much of
// these messages; shorter messages have no limit (docs/limits.md).
constexpr std::size_t kMostEager = std::size_t{1} << 20;

}  // namespace

PointToPoint::PointToPoint(RunContext& context)
    : context_(context), peers_(static_cast<std::size_t>(context.worldSize)) {}

// A message without bytes always is: no part of it would ever come.
bool PointToPoint::isEager(Rank to, std::size_t bytes, std::size_t textBytes) const {
  const Peer* const peer = peerOrNull(to);
  const std::size_t untaken = peer == nullptr ? 0 : peer->untakenBytes;
  const bool isShort = bytes <= context_.inlineBytes || (bytes <= context_.eagerBytes && untaken + bytes <= kMostEager);
  return isShort && bytes + textBytes + kHeadBytes<EagerFrame> <= context_.connection(to).maxFrameBytes(Lane::kControl);
}

void PointToPoint::noteEager(Rank to, std::size_t bytes) {
  if (bytes > context_.inlineBytes) {
    peer(to).untakenBytes += bytes;
  }
}

PointToPoint::Peer& PointToPoint::peer(Rank rank) {
  std::unique_ptr<Peer>& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>();
  }
  return *peer;
}

void PointToPoint::start(const std::shared_ptr<PointSend>& send) {
  Peer& peer = this->peer(send->peer);
  send->points_ = this;
  send->message = peer.nextMessage++;
  peer.sends.push_back(send);
}

void PointToPoint::start(const std::shared_ptr<PointRecv>& recv) {
  recv->points_ = this;
  // Take the oldest message with a fitting tag, if a message is already here.
  for (Rank from = 0; from < context_.worldSize; ++from) {
    Peer* const peer = peerOrNull(from);
    if (peer == nullptr || (recv->peer >= 0 && recv->peer != from)) {
      continue;
    }
    auto& waiting = peer->unexpected;
    for (auto it = waiting.begin(); it != waiting.end(); ++it) {
      if (it->tag == recv->tag) {
        const Unexpected message = std::move(*it);
        waiting.erase(it);
        if (Status status = deliverKept(*recv, from, message.frame); !status.isOk()) {
          context_.fail(std::move(status));
        }
        return;
      }
    }
  }
  receives_.push_back(recv);
}

std::shared_ptr<PointRecv> PointToPoint::recvFor(Rank from, const MessageTag& about, std::span<const std::byte> bytes) {
  auto& givenUp = peer(from).givenUp;
  if (const auto found = std::ranges::find(givenUp, about.tag); found != givenUp.end()) {
    givenUp.erase(found);
    return nullptr;
  }
  for (auto it = receives_.begin(); it != receives_.end(); ++it) {
    if (((*it)->peer < 0 || (*it)->peer == from) && (*it)->tag == about.tag) {
      std::shared_ptr<PointRecv> recv = std::move(*it);
      receives_.erase(it);
      // Only a failed group still has a finished recv here. The program has the tensor back, so the message is dropped.
      return recv->isDone() ? nullptr : recv;
    }
  }
  if (now_ != nullptr && now_->from_ == from && now_->tag_ == about.tag) {
    now_ = nullptr;  // later messages with this tag come after this one
  }
  peer(from).unexpected.push_back({about.tag, {bytes.begin(), bytes.end()}});
  return nullptr;
}

// ---- messages inside the call

std::shared_ptr<Activity> PointToPoint::sendNow(Rank to, int tag, std::span<const std::byte> bytes) {
  const Connection& connection = context_.connection(to);
  Peer& peer = this->peer(to);
  const bool isNext = peer.sends.empty() || peer.sends.back()->offered_;
  if (!isNext || !connection.isJoined() || !isEager(to, bytes.size(), 0)) {
    return nullptr;
  }
  const MessageTag about{.message = peer.nextMessage, .messageBytes = bytes.size(), .tag = tag};
  if (!context_.sendControl(to, EagerFrame{about}, bytes)) {
    return nullptr;
  }
  ++peer.nextMessage;
  noteEager(to, bytes.size());
  return overInCall();
}

PointToPoint::ReceiveNow::ReceiveNow(PointToPoint& points, Rank from, int tag, std::span<std::byte> bytes)
    : points_(points), from_(from), tag_(tag), bytes_(bytes) {
  const Peer& peer = points.peer(from);
  const bool isNext =
      points.context_.connection(from).isJoined() && points.receives_.empty() && peer.givenUp.empty() &&
      (peer.unexpected.empty() || std::ranges::find(peer.unexpected, tag, &Unexpected::tag) == peer.unexpected.end());
  points.now_ = isNext ? this : nullptr;
}

bool PointToPoint::takeNow(Rank from, const Received<EagerFrame>& frame) {
  if (now_ == nullptr || now_->isDone() || now_->from_ != from || now_->tag_ != frame.about.tag ||
      frame.about.messageBytes != now_->bytes_.size() || frame.about.textBytes != 0) {
    return false;
  }
  copyFew(now_->bytes_.data(), frame.payload.data(), now_->bytes_.size());
  std::shared_ptr<Activity>& received = peer(from).received;
  if (received == nullptr) {
    received = OverInCall::make(from);
  }
  now_->done_ = received;
  return true;
}

// ---- messages of operations

Status PointToPoint::onEager(Rank from, const Received<EagerFrame>& frame, std::span<const std::byte> bytes) {
  if (takeNow(from, frame)) {
    return Status::ok();
  }
  const std::shared_ptr<PointRecv> recv = recvFor(from, frame.about, bytes);
  return recv == nullptr ? Status::ok() : deliver(*recv, from, frame);
}

Status PointToPoint::onOffer(Rank from, const Received<OfferFrame>& frame, std::span<const std::byte> bytes) {
  const std::shared_ptr<PointRecv> recv = recvFor(from, frame.about, bytes);
  return recv == nullptr ? Status::ok() : deliver(*recv, from, frame);
}

Status PointToPoint::deliverKept(PointRecv& recv, Rank from, std::span<const std::byte> frame) {
  if (const auto eager = readFrame<EagerFrame>(frame)) {
    return deliver(recv, from, *eager);
  }
  // The frame was sound on arrival, but lay in memory shared with the peer.
  const auto offer = readFrame<OfferFrame>(frame);
  return offer.has_value() ? deliver(recv, from, *offer) : unreadableFrame(from, Lane::kControl, frame);
}

// A message of this peer that is no longer in the list failed meanwhile. A peer may ask neither for a message without
// an offer nor for a finished message.
Status PointToPoint::onGrant(Rank from, const Received<GrantFrame>& frame) {
  PointSend* const send = find(from, frame.message);
  if (send == nullptr) {
    return Status::ok();
  }
  if (!send->offered_ || send->granted_ || send->finished_) {
    return {StatusCode::kInternal,
            fmt::format("rank {} asked for message {}, which is not to be had", from, frame.message)};
  }
  send->granted_ = true;
  peer(from).untakenBytes = 0;
  peer(from).toStage.push_back(std::static_pointer_cast<PointSend>(send->shared_from_this()));
  return Status::ok();
}

Status PointToPoint::onTaken(Rank from, const Received<TakenFrame>& frame) {
  PointSend* const send = find(from, frame.message);
  if (send == nullptr) {
    return Status::ok();
  }
  if (!send->offered_ || send->granted_ || send->reach_ == Reach::kNone) {
    return {StatusCode::kInternal,
            fmt::format("rank {} says it has read message {}, which it cannot have", from, frame.message)};
  }
  if (send->reach_ == Reach::kFetch) {
    context_.connection(from).conceal(send->address_);
  }
  peer(from).untakenBytes = 0;
  send->finished_ = true;
  return Status::ok();
}

Status PointToPoint::match(PointRecv& recv, Rank from, const MessageTag& about, std::string_view sent) {
  recv.source_ = from;
  recv.message_ = about.message;
  if (!sent.empty() && !recv.arguments.empty() && sent != recv.arguments) {
    return {StatusCode::kMismatch,
            fmt::format("rank {} sent {} with tag {}, but rank {} receives {}: send and recv must have tensors of the "
                        "same dtype and shape (compared by SHARDWIRE_CHECK=full)",
                        from, sent, recv.tag, context_.rank, recv.arguments)};
  }
  if (about.messageBytes != recv.bytes.size()) {
    return {
        StatusCode::kMismatch,
        fmt::format("rank {} sent {} bytes with tag {}, but rank {} receives {} bytes: send and recv must have tensors "
                    "of the same size",
                    from, about.messageBytes, recv.tag, context_.rank, recv.bytes.size())};
  }
  return Status::ok();
}

Status PointToPoint::deliver(PointRecv& recv, Rank from, const Received<EagerFrame>& frame) {
  SW_RETURN_IF_ERROR(match(recv, from, frame.about, textOf(frame.payload.last(frame.about.textBytes))));
  std::copy_n(frame.payload.begin(), recv.bytes.size(), recv.bytes.begin());
  recv.finished_ = true;
  return Status::ok();
}

Status PointToPoint::deliver(PointRecv& recv, Rank from, const Received<OfferFrame>& frame) {
  SW_RETURN_IF_ERROR(match(recv, from, frame.about, textOf(frame.payload)));
  recv.reach_ = static_cast<Reach>(frame.reach);
  recv.address_ = {frame.space, frame.address};
  recv.matched_ = true;
  if (recv.reach_ == Reach::kCopy) {
    chooseWay(recv, from);
  }
  return Status::ok();
}

void PointToPoint::chooseWay(PointRecv& recv, Rank from) {
  const ReadLimits limits = context_.connection(from).readLimits();
  if (!context_.hasCorePerRank) {
    recv.reach_ = recv.bytes.size() > limits.maxEdgeBytes ? Reach::kNone : Reach::kCopy;
    return;
  }
  if (limits.isMeasured) {
    Peer& peer = this->peer(from);
    SizeWay& way = peer.wayOf(recv.bytes.size());
    recv.reach_ = way.measured.nextIsRead(way.numMessages++).value_or(false) ? Reach::kCopy : Reach::kNone;
    // Behind a message that is being staged, the time would not be this message's own.
    recv.matchedAt_ = peer.granted.empty() ? Clock::now() : Clock::time_point{};
  }
}

void PointToPoint::noteWay(const PointRecv& recv) {
  if (recv.matchedAt_ != Clock::time_point{}) {
    const auto took = static_cast<double>((Clock::now() - recv.matchedAt_).count());
    SizeWay& way = peer(recv.source_).wayOf(recv.bytes.size());
    way.measured.note(recv.reach_ == Reach::kCopy, took / static_cast<double>(recv.bytes.size()));
  }
}

PointSend* PointToPoint::find(Rank peer, std::uint64_t message) {
  const Peer* const known = peerOrNull(peer);
  if (known == nullptr) {
    return nullptr;
  }
  const auto found = std::ranges::find(known->sends, message, &PointSend::message);
  return found == known->sends.end() ? nullptr : found->get();
}

// `send` is in the list, and not announced yet.
bool PointToPoint::mayOffer(const PointSend& send) const {
  return std::ranges::find(peerOrNull(send.peer)->sends, false, &PointSend::offered_)->get() == &send;
}

void PointToPoint::forget(const Activity* activity) {
  const auto is = [&](const auto& pointer) { return pointer.get() == activity; };
  std::erase_if(receives_, is);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer != nullptr) {
      std::erase_if(peer->sends, is);
    }
  }
}

void PointToPoint::giveUp(const PointRecv& recv) {
  forget(&recv);
  peer(recv.peer).givenUp.push_back(recv.tag);
}

// ---- sending

bool PointSend::offer(RunContext& context) {
  Connection& connection = context.connection(peer);
  const MessageTag about{.message = message,
                         .messageBytes = bytes.size(),
                         .tag = tag,
                         .textBytes = static_cast<std::uint32_t>(arguments.size())};
  if (points_->isEager(peer, bytes.size(), arguments.size())) {
    if (arguments.empty()) {
      offered_ = context.sendControl(peer, EagerFrame{about}, bytes);
    } else {
      std::vector<std::byte> both(bytes.begin(), bytes.end());
      both.insert(both.end(), bytesOf(arguments).begin(), bytesOf(arguments).end());
      offered_ = context.sendControl(peer, EagerFrame{about}, both);
    }
    if (offered_) {
      points_->noteEager(peer, bytes.size());
    }
    finished_ = offered_;
    return offered_;
  }
  const ReadLimits limits = connection.readLimits();
  if (reach_ == Reach::kNone && bytes.size() >= limits.minEdgeBytes) {
    reach_ = connection.expose(bytes.data(), bytes.size(), &address_);
  }
  const OfferFrame frame{
      .about = about, .reach = static_cast<std::uint32_t>(reach_), .space = address_.space, .address = address_.value};
  offered_ = context.sendControl(peer, frame, bytesOf(arguments));
  return offered_;
}

bool PointSend::step(std::vector<bool>&) {
  RunContext& context = this->context();
  bool moved = false;
  if (!offered_ && context.connection(peer).isJoined() && (staging == nullptr || staging->allReady()) &&
      points_->mayOffer(*this)) {
    moved = offer(context);
  }
  if (granted_ && !finished_ && points_->isNextToStage(peer, this)) {
    Connection& connection = context.connection(peer);
    const std::size_t longest = bytes.size() >= kStreamStagedFrom ? bytes.size() : kCachedPart;
    while (staged_ < bytes.size()) {
      const std::size_t left = std::min(bytes.size() - staged_, longest);
      const auto frame = connection.reserve(Lane::kPoint, kPartHead + 1,
                                            std::min(connection.maxFrameBytes(Lane::kPoint), kPartHead + left));
      if (frame.empty()) {
        return moved;
      }
      const std::size_t part = std::min(left, frame.size() - kPartHead);
      writeFrame(frame, MessagePartFrame{message}, part);
      copyRun(frame.data() + kPartHead, bytes.data() + staged_, part, stagedHint(bytes.size()));
      connection.commit(Lane::kPoint, kPartHead + part);
      staged_ += part;
      moved = true;
    }
    points_->popToStage(peer);
    finished_ = true;
  }
  if (finished_) {
    points_->forget(this);
  }
  return moved;
}

std::string PointSend::waitingFor() const {
  return fmt::format("rank {} did not receive it", peer);
}

// ---- receiving

bool PointRecv::step(std::vector<bool>&) {
  RunContext& context = this->context();
  if (!matched_ || finished_) {
    return false;
  }
  Connection& connection = context.connection(source_);
  if (reach_ == Reach::kNone) {
    if (!grantSent_) {
      grantSent_ = context.sendControl(source_, GrantFrame{message_});
      if (grantSent_) {
        points_->grantedTo(source_, std::static_pointer_cast<PointRecv>(shared_from_this()));
      }
      return grantSent_;
    }
    bool moved = false;
    while (points_->isNextGranted(source_, this)) {
      const auto frame = connection.peek(Lane::kPoint);
      if (frame.empty()) {
        return moved;
      }
      const auto part = readFrame<MessagePartFrame>(frame);
      if (!part.has_value()) {
        context.fail(unreadableFrame(source_, Lane::kPoint, frame));
        return true;
      }
      if (part->message != message_ || part->payload.size() > bytes.size() - received_) {
        context.fail({StatusCode::kInternal, fmt::format("rank {} sent bytes of another message than rank {} asked for",
                                                         source_, context.rank)});
        return true;
      }
      copyRun(bytes.data() + received_, part->payload.data(), part->payload.size(), storeHint());
      received_ += part->payload.size();
      connection.release(Lane::kPoint);
      moved = true;
      if (received_ == bytes.size()) {
        points_->popGranted(source_);
        points_->noteWay(*this);
        finished_ = true;
      }
    }
    return moved;
  }
  if (received_ < bytes.size()) {
    const std::size_t part = std::min(kReadPiece, bytes.size() - received_);
    if (reach_ == Reach::kDirect) {
      const std::byte* source = connection.map({address_.space, address_.value + received_}, part);
      if (source == nullptr) {
        context.fail({StatusCode::kInternal,
                      fmt::format("rank {} offered memory that is not mapped on rank {}", source_, context.rank)});
        return true;
      }
      const DirectRead reading(connection);
      if (!reading.isAllowed()) {
        return false;
      }
      copyRun(bytes.data() + received_, source, part, storeHint());
    } else if (reach_ == Reach::kFetch) {
      const MemoryRun run{bytes.data() + received_, address_.value + received_, part};
      if (!connection.fetch(address_.space, std::span(&run, 1), &fetches_)) {
        return false;  // no room to ask now
      }
    } else {
      const MemoryRun run{bytes.data() + received_, address_.value + received_, part};
      if (Status status = connection.read(std::span(&run, 1)); !status.isOk()) {
        if (connection.hasWithdrawn()) {
          return false;  // the sender failed and has its tensor back: the sender's reason is on the way
        }
        context.fail(std::move(status));
        return true;
      }
    }
    received_ += part;
    if (received_ == bytes.size()) {
      points_->noteWay(*this);
    }
    return true;
  }
  if (fetches_.pending > 0 || (reach_ != Reach::kFetch && connection.hasWithdrawn())) {
    return false;  // still under way; or the sender failed during the read, so that the bytes may be wrong
  }
  // A full control lane delays the acknowledgement, nothing else.
  finished_ = context.sendControl(source_, TakenFrame{message_});
  return finished_;
}

StoreHint PointRecv::storeHint() const {
  if (bytes.size() >= kStreamFromBytes) {
    return StoreHint::kStream;
  }
  return reach_ == Reach::kDirect ? StoreHint::kFar : StoreHint::kAuto;
}

std::string PointRecv::waitingFor() const {
  if (source_ >= 0) {
    return fmt::format("rank {} offered a message but did not finish", source_);
  }
  return peer >= 0 ? fmt::format("rank {} sent nothing with tag {}", peer, tag)
                   : fmt::format("no rank sent anything with tag {}", tag);
}

}  // namespace shardwire::internal
