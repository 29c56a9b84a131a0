// send and recv: matched by (peer, tag) in the order in which they were issued, apart from the order of collectives.
//
// A short message travels eagerly in one control frame. A longer one is offered: the receiver that matches it reads it from the sender's
// memory where it can, or else asks for it and gets it in frames of the point lane. Messages that come before their recv wait here:
// payloads of short ones, offers of long ones.
//
// Everything here is under the engine's lock. Tensors are contiguous (the communicator packs others).
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "backend/exec/activity.h"
#include "backend/transport/transport.h"
#include "shardwire/staging.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

class PointSend;
class PointRecv;

class PointToPoint {
 public:
  explicit PointToPoint(Engine& engine);

  // Called under the engine's lock, after the engine took the activity.
  void start(const std::shared_ptr<PointSend>& send);
  void start(const std::shared_ptr<PointRecv>& recv);
  Status onFrame(Rank from, const FrameHeader& header, std::span<const std::byte> payload);

  // Staged messages from `peer` come in the order of their grants.
  // Messages to one peer are announced in the order in which they were issued.
  bool mayOffer(const PointSend& send) const;
  void grantedTo(Rank peer, std::shared_ptr<PointRecv> recv) { peers_[static_cast<std::size_t>(peer)].granted.push_back(std::move(recv)); }
  bool isNextGranted(Rank peer, const PointRecv* recv) const;
  void popGranted(Rank peer);
  // Likewise outgoing: the sends that peers asked for, in order.
  bool isNextToStage(Rank peer, const PointSend* send) const;
  void popToStage(Rank peer);
  void forget(const Activity* activity);

 private:
  struct Unexpected {
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  struct Peer {
    std::uint64_t nextMessage = 1;
    std::vector<std::shared_ptr<PointSend>> sends;   // offered, not yet done
    std::deque<std::shared_ptr<PointSend>> toStage;  // granted, being staged, oldest first
    std::deque<std::shared_ptr<PointRecv>> granted;  // our receives whose frames come next
    std::deque<Unexpected> unexpected;               // no recv yet
  };

  Status match(PointRecv& recv, Rank from, const FrameHeader& header, std::span<const std::byte> payload);
  PointSend* find(Rank peer, std::uint64_t message);

  Engine& engine_;
  std::vector<Peer> peers_;
  std::vector<std::shared_ptr<PointRecv>> receives_;  // not yet matched, in order
};

class PointSend final : public Activity {
 public:
  PointSend(Rank peer, int tag, std::span<const std::byte> bytes) : peer(peer), tag(tag), bytes(bytes) {}
  bool step(Engine& engine, std::vector<bool>& blockedBulk) override;
  Status onFrame(Engine&, Rank, const FrameHeader&, std::span<const std::byte>) override { return Status::ok(); }
  bool finished() const override { return finished_; }
  bool needs(Rank rank) const override { return rank == peer && !finished_; }
  std::string waitingFor() const override;
  bool ordered() const override { return false; }

  const Rank peer;
  const int tag;
  const std::span<const std::byte> bytes;
  std::uint64_t message = 0;   // numbered per peer
  Staging* staging = nullptr;  // of `bytes`, when these come from a device

 private:
  friend class PointToPoint;
  bool offer(Engine& engine);

  Reach reach_ = Reach::kNone;
  RemoteAddress address_;
  bool offered_ = false;
  bool granted_ = false;
  std::size_t staged_ = 0;
  bool finished_ = false;
};

class PointRecv final : public Activity {
 public:
  // peer may be kAnySource (-1).
  PointRecv(Rank peer, int tag, std::span<std::byte> bytes) : peer(peer), tag(tag), bytes(bytes) {}
  bool step(Engine& engine, std::vector<bool>& blockedBulk) override;
  Status onFrame(Engine&, Rank, const FrameHeader&, std::span<const std::byte>) override { return Status::ok(); }
  bool finished() const override { return finished_; }
  bool needs(Rank rank) const override { return !finished_ && (rank == peer || rank == source_); }
  std::string waitingFor() const override;
  bool ordered() const override { return false; }
  Rank sourceRank() const override { return isDone() ? source_ : -1; }

  const Rank peer;
  const int tag;
  const std::span<std::byte> bytes;

 private:
  friend class PointToPoint;

  Rank source_ = -1;
  std::uint64_t message_ = 0;
  Reach reach_ = Reach::kNone;
  RemoteAddress address_;
  bool matched_ = false;  // an offer was matched; what is left is to fetch it
  bool grantSent_ = false;
  std::size_t received_ = 0;  // or asked for, when it is fetched
  FetchCount fetches_;
  bool finished_ = false;
};

}  // namespace shardwire::internal
