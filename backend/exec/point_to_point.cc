#include "backend/exec/point_to_point.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/exec/engine.h"
#include "ops/plan/strided_runs.h"

namespace shardwire::internal {

namespace {

// One step reads at most this much, so that other operations are looked at in between.
constexpr std::size_t kReadPiece = std::size_t{4} << 20;

constexpr std::uint32_t wireTag(int tag) {
  return static_cast<std::uint32_t>(tag);
}

bool isEager(const Engine& engine, Connection& connection, std::size_t bytes) {
  return bytes <= engine.options().inlineBytes && bytes + sizeof(FrameHeader) <= connection.maxFrameBytes(Lane::kControl);
}

}  // namespace

PointToPoint::PointToPoint(Engine& engine) : engine_(engine), peers_(static_cast<std::size_t>(engine.worldSize())) {}

void PointToPoint::start(const std::shared_ptr<PointSend>& send) {
  Peer& peer = peers_[static_cast<std::size_t>(send->peer)];
  send->message = peer.nextMessage++;
  peer.sends.push_back(send);
}

void PointToPoint::start(const std::shared_ptr<PointRecv>& recv) {
  // The oldest message that is here already and fits.
  for (Rank from = 0; from < engine_.worldSize(); ++from) {
    if (recv->peer >= 0 && recv->peer != from) {
      continue;
    }
    auto& waiting = peers_[static_cast<std::size_t>(from)].unexpected;
    for (auto it = waiting.begin(); it != waiting.end(); ++it) {
      if (it->header.a == wireTag(recv->tag)) {
        const Unexpected message = std::move(*it);
        waiting.erase(it);
        if (Status status = match(*recv, from, message.header, message.payload); !status.isOk()) {
          engine_.poison(std::move(status), true);
        }
        return;
      }
    }
  }
  receives_.push_back(recv);
}

Status PointToPoint::onFrame(Rank from, const FrameHeader& header, std::span<const std::byte> payload) {
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  if (header.kind == FrameKind::kSendGrant || header.kind == FrameKind::kSendDone) {
    PointSend* send = find(from, header.seq);
    if (send == nullptr) {
      return Status::ok();  // it failed here meanwhile
    }
    if (header.kind == FrameKind::kSendDone) {
      if (send->reach_ == Reach::kFetch) {
        engine_.connection(from)->conceal(send->address_);
      }
      send->finished_ = true;
    } else {
      send->granted_ = true;
      peer.toStage.push_back(std::static_pointer_cast<PointSend>(send->shared_from_this()));
    }
    return Status::ok();
  }
  for (auto it = receives_.begin(); it != receives_.end(); ++it) {
    PointRecv& recv = **it;
    if ((recv.peer < 0 || recv.peer == from) && wireTag(recv.tag) == header.a) {
      const auto keep = *it;
      receives_.erase(it);
      return match(*keep, from, header, payload);
    }
  }
  peer.unexpected.push_back({header, {payload.begin(), payload.end()}});
  return Status::ok();
}

Status PointToPoint::match(PointRecv& recv, Rank from, const FrameHeader& header, std::span<const std::byte> payload) {
  recv.source_ = from;
  recv.message_ = header.seq;
  if (header.fingerprint != recv.bytes.size()) {
    return {StatusCode::kMismatch,
            fmt::format("rank {} sent {} bytes with tag {}, but rank {} receives {} bytes: send and recv must have tensors "
                        "of the same size",
                        from, header.fingerprint, recv.tag, engine_.rank(), recv.bytes.size())};
  }
  if (header.kind == FrameKind::kSendEager) {
    if (payload.size() != recv.bytes.size()) {
      return {StatusCode::kInternal,
              fmt::format("rank {} sent a message of {} bytes that says {}", from, payload.size(), header.fingerprint)};
    }
    std::copy(payload.begin(), payload.end(), recv.bytes.begin());
    recv.finished_ = true;
    return Status::ok();
  }
  PostEntry entry;
  if (payload.size() != sizeof entry) {
    return {StatusCode::kInternal, fmt::format("rank {} sent an offer of {} bytes that cannot be read", from, payload.size())};
  }
  std::memcpy(&entry, payload.data(), sizeof entry);
  if (entry.reach > static_cast<std::uint8_t>(Reach::kFetch)) {
    return {StatusCode::kInternal, fmt::format("rank {} sent an offer of unknown reach {}", from, entry.reach)};
  }
  recv.reach_ = static_cast<Reach>(entry.reach);
  recv.address_ = {entry.space, entry.address};
  recv.matched_ = true;
  return Status::ok();
}

PointSend* PointToPoint::find(Rank peer, std::uint64_t message) {
  for (const auto& send : peers_[static_cast<std::size_t>(peer)].sends) {
    if (send->message == message) {
      return send.get();
    }
  }
  return nullptr;
}

bool PointToPoint::mayOffer(const PointSend& send) const {
  for (const auto& earlier : peers_[static_cast<std::size_t>(send.peer)].sends) {
    if (earlier.get() == &send) {
      return true;
    }
    if (!earlier->offered_) {
      return false;
    }
  }
  return false;
}

bool PointToPoint::isNextGranted(Rank peer, const PointRecv* recv) const {
  const auto& granted = peers_[static_cast<std::size_t>(peer)].granted;
  return !granted.empty() && granted.front().get() == recv;
}

void PointToPoint::popGranted(Rank peer) {
  peers_[static_cast<std::size_t>(peer)].granted.pop_front();
}

bool PointToPoint::isNextToStage(Rank peer, const PointSend* send) const {
  const auto& toStage = peers_[static_cast<std::size_t>(peer)].toStage;
  return !toStage.empty() && toStage.front().get() == send;
}

void PointToPoint::popToStage(Rank peer) {
  peers_[static_cast<std::size_t>(peer)].toStage.pop_front();
}

void PointToPoint::forget(const Activity* activity) {
  const auto is = [&](const auto& pointer) { return pointer.get() == activity; };
  std::erase_if(receives_, is);
  for (Peer& peer : peers_) {
    std::erase_if(peer.sends, is);
  }
}

// ---- sending

bool PointSend::offer(Engine& engine) {
  Connection& connection = *engine.connection(peer);
  FrameHeader header{.kind = FrameKind::kSendEager, .seq = message, .fingerprint = bytes.size(), .a = wireTag(tag)};
  if (isEager(engine, connection, bytes.size())) {
    offered_ = engine.sendControl(peer, header, bytes);
    finished_ = offered_;
    return offered_;
  }
  if (reach_ == Reach::kNone && bytes.size() >= connection.readLimits().minEdgeBytes) {
    reach_ = connection.expose(bytes.data(), bytes.size(), &address_);
  }
  PostEntry entry;
  entry.reach = static_cast<std::uint8_t>(reach_);
  entry.space = address_.space;
  entry.address = address_.value;
  header.kind = FrameKind::kSendOffer;
  offered_ = engine.sendControl(peer, header, std::as_bytes(std::span(&entry, 1)));
  return offered_;
}

bool PointSend::step(Engine& engine, std::vector<bool>&) {
  bool moved = false;
  if (!offered_ && (staging == nullptr || staging->allReady()) && engine.points().mayOffer(*this)) {
    moved = offer(engine);
  }
  if (granted_ && !finished_ && engine.points().isNextToStage(peer, this)) {
    Connection& connection = *engine.connection(peer);
    while (staged_ < bytes.size()) {
      const std::size_t left = bytes.size() - staged_;
      const auto frame = connection.reserve(Lane::kPoint, sizeof(FrameHeader) + 1,
                                            std::min(connection.maxFrameBytes(Lane::kPoint), sizeof(FrameHeader) + left));
      if (frame.empty()) {
        return moved;
      }
      const std::size_t part = std::min(left, frame.size() - sizeof(FrameHeader));
      writeHeader(frame, {.kind = FrameKind::kBytes, .payloadBytes = static_cast<std::uint32_t>(part), .seq = message});
      // Past the cache: see kStreamFrom in plan_run_send.cc. A box of bytes is as good as any.
      const StridedBox source{const_cast<std::byte*>(bytes.data()) + staged_, {1}};
      packBox(frame.data() + sizeof(FrameHeader), source, {static_cast<std::int64_t>(part)}, 1, StoreHint::kStream);
      connection.commit(Lane::kPoint, sizeof(FrameHeader) + part);
      staged_ += part;
      moved = true;
    }
    engine.points().popToStage(peer);
    finished_ = true;
  }
  if (finished_) {
    engine.points().forget(this);
  }
  return moved;
}

std::string PointSend::waitingFor() const {
  return fmt::format("rank {} did not receive it", peer);
}

// ---- receiving

bool PointRecv::step(Engine& engine, std::vector<bool>&) {
  if (!matched_ || finished_) {
    return false;
  }
  Connection& connection = *engine.connection(source_);
  if (reach_ == Reach::kNone) {
    if (!grantSent_) {
      grantSent_ = engine.sendControl(source_, {.kind = FrameKind::kSendGrant, .seq = message_});
      if (grantSent_) {
        engine.points().grantedTo(source_, std::static_pointer_cast<PointRecv>(shared_from_this()));
      }
      return grantSent_;
    }
    bool moved = false;
    while (engine.points().isNextGranted(source_, this)) {
      const auto frame = connection.peek(Lane::kPoint);
      if (frame.empty()) {
        return moved;
      }
      const std::size_t part = frame.size() - sizeof(FrameHeader);
      if (readHeader(frame).seq != message_ || part > bytes.size() - received_) {
        engine.poison(
            {StatusCode::kInternal, fmt::format("rank {} sent bytes of another message than rank {} asked for", source_, engine.rank())},
            true);
        return true;
      }
      std::copy_n(frame.data() + sizeof(FrameHeader), part, bytes.data() + received_);
      connection.release(Lane::kPoint);
      received_ += part;
      moved = true;
      if (received_ == bytes.size()) {
        engine.points().popGranted(source_);
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
        engine.poison({StatusCode::kInternal, fmt::format("rank {} offered memory that is not mapped on rank {}", source_, engine.rank())},
                      true);
        return true;
      }
      std::copy_n(source, part, bytes.data() + received_);
    } else if (reach_ == Reach::kFetch) {
      const MemoryRun run{bytes.data() + received_, address_.value + received_, part};
      if (!connection.fetch(address_.space, std::span(&run, 1), &fetches_)) {
        return false;  // no room to ask now
      }
    } else {
      const MemoryRun run{bytes.data() + received_, address_.value + received_, part};
      if (Status status = connection.read(std::span(&run, 1)); !status.isOk()) {
        engine.poison(std::move(status), true);
        return true;
      }
    }
    received_ += part;
    return true;
  }
  if (fetches_.pending > 0) {
    return false;
  }
  // A full control lane delays the word of thanks, nothing else.
  finished_ = engine.sendControl(source_, {.kind = FrameKind::kSendDone, .seq = message_});
  return finished_;
}

std::string PointRecv::waitingFor() const {
  if (source_ >= 0) {
    return fmt::format("rank {} offered a message but did not finish", source_);
  }
  return peer >= 0 ? fmt::format("rank {} sent nothing with tag {}", peer, tag) : fmt::format("no rank sent anything with tag {}", tag);
}

}  // namespace shardwire::internal
