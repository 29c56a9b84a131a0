// send and recv: matched by (peer, tag) in the order of issue, independently of the order of collectives.
//
// A short message travels eagerly in one control frame. A longer message is offered: the matching receiver reads the
// message from the sender's memory where possible, or else asks for the message and gets the bytes in frames of the
// point lane. Messages that come before their recv wait here: payloads of short messages, offers of long messages.
//
// While nothing is in flight, a short message needs no operation: the call sends the message, or polls for a moment
// until the message is here (sendNow, ReceiveNow). A message that has to wait becomes an operation.
//
// Everything here is under the engine's lock. Tensors are contiguous (the communicator packs others).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/exec/activity.h"
#include "backend/exec/read_or_stage.h"
#include "backend/transport/transport.h"
#include "ops/boxes/copy_box.h"
#include "shardwire/staging.h"

namespace shardwire::internal {

class PointSend;
class PointRecv;

class PointToPoint {
 public:
  explicit PointToPoint(RunContext& context);

  // Called under the engine's lock, after the engine took the activity.
  void start(const std::shared_ptr<PointSend>& send);
  void start(const std::shared_ptr<PointRecv>& recv);

  // Sends a short message inside the call. Null: the message has to wait, for example for room or for a link. Otherwise
  // returns a finished operation, which all such sends share.
  std::shared_ptr<Activity> sendNow(Rank to, int tag, std::span<const std::byte> bytes);
  // A receive inside a call: takes the next message from `from` with the tag as soon as the message is here. Takes
  // nothing while another receive or a kept message comes first, and no message of another size. At most one exists at
  // a time.
  class ReceiveNow {
   public:
    ReceiveNow(PointToPoint& points, Rank from, int tag, std::span<std::byte> bytes);
    ReceiveNow(const ReceiveNow&) = delete;
    ReceiveNow& operator=(const ReceiveNow&) = delete;
    ~ReceiveNow() { points_.now_ = nullptr; }
    // Whether a message may be taken at all.
    bool isOpen() const { return points_.now_ == this; }
    bool isDone() const { return done_ != nullptr; }
    // A finished operation, which all such receives from the peer share; null before the message is here.
    std::shared_ptr<Activity> takeWork() { return std::move(done_); }

   private:
    friend class PointToPoint;
    PointToPoint& points_;
    const Rank from_;
    const int tag_;
    const std::span<std::byte> bytes_;
    std::shared_ptr<Activity> done_;
  };

  // The ReceiveNow has its message from this peer. The frames behind the message may stay in the lane.
  bool hasTakenNow(Rank from) const { return now_ != nullptr && now_->from_ == from && now_->isDone(); }

  // `bytes`: the whole frame, kept until a recv matches the message.
  Status onEager(Rank from, const Received<EagerFrame>& frame, std::span<const std::byte> bytes);
  Status onOffer(Rank from, const Received<OfferFrame>& frame, std::span<const std::byte> bytes);
  Status onGrant(Rank from, const Received<GrantFrame>& frame);
  Status onTaken(Rank from, const Received<TakenFrame>& frame);

  // Whether the message goes in one frame, without an offer; noteEager(): this message has left so.
  bool isEager(Rank to, std::size_t bytes, std::size_t textBytes) const;
  void noteEager(Rank to, std::size_t bytes);
  // Messages to one peer are announced in the order of issue. Staged messages from `peer` come in the order of their
  // grants.
  bool mayOffer(const PointSend& send) const;
  void grantedTo(Rank peer, std::shared_ptr<PointRecv> recv) { this->peer(peer).granted.push_back(std::move(recv)); }
  bool isNextGranted(Rank peer, const PointRecv* recv) { return isFirst(this->peer(peer).granted, recv); }
  void popGranted(Rank peer) { this->peer(peer).granted.pop_front(); }
  // The recv, whose way chooseWay() chose, has all of its bytes.
  void noteWay(const PointRecv& recv);
  // Likewise outgoing: the sends that peers asked for, in order.
  bool isNextToStage(Rank peer, const PointSend* send) { return isFirst(this->peer(peer).toStage, send); }
  void popToStage(Rank peer) { this->peer(peer).toStage.pop_front(); }
  void forget(const Activity* activity);
  // The recv ends unmatched; if the awaited message comes later, this rank drops the message.
  void giveUp(const PointRecv& recv);

 private:
  // A message that came before its recv: the message's EagerFrame or OfferFrame.
  struct Unexpected {
    std::int32_t tag = 0;
    std::vector<std::byte> frame;
  };
  struct SizeWay {
    ReadOrStage measured;
    std::uint64_t numMessages = 0;
  };
  struct Peer {
    std::uint64_t nextMessage = 1;
    std::size_t untakenBytes = 0;                    // of longer eager messages, since the peer last answered an offer
    std::vector<std::shared_ptr<PointSend>> sends;   // offered, not yet done
    std::deque<std::shared_ptr<PointSend>> toStage;  // granted, being staged, oldest first
    std::deque<std::shared_ptr<PointRecv>> granted;  // our receives whose frames come next
    std::deque<Unexpected> unexpected;               // no recv yet
    std::vector<std::int32_t> givenUp;   // tags of messages without a waiting recv any more, each entry for one message
    std::shared_ptr<Activity> received;  // for ReceiveNow; made by its first use
    std::array<SizeWay, 32> ways;        // of long messages from the peer
    // Sizes of one power of two count as one.
    SizeWay& wayOf(std::size_t bytes) { return ways[static_cast<std::size_t>(std::bit_width(bytes)) % ways.size()]; }
  };
  // Made at the first message from or to the rank: empty queues take 2 KiB, and a group has many ranks that never send
  // to each other.
  Peer& peer(Rank rank);
  Peer* peerOrNull(Rank rank) const { return peers_[static_cast<std::size_t>(rank)].get(); }

  template <typename T>
  static bool isFirst(const std::deque<std::shared_ptr<T>>& queue, const T* activity) {
    return !queue.empty() && queue.front().get() == activity;
  }

  // Returns the recv that takes the message now, if a recv waits; else keeps the frame and returns null.
  std::shared_ptr<PointRecv> recvFor(Rank from, const MessageTag& about, std::span<const std::byte> bytes);
  Status match(PointRecv& recv, Rank from, const MessageTag& about, std::string_view sent);
  Status deliver(PointRecv& recv, Rank from, const Received<EagerFrame>& frame);
  Status deliver(PointRecv& recv, Rank from, const Received<OfferFrame>& frame);
  Status deliverKept(PointRecv& recv, Rank from, std::span<const std::byte> frame);
  PointSend* find(Rank peer, std::uint64_t message);
  // The receiver of an offer that a read across memories would answer: reads, or asks for the bytes.
  void chooseWay(PointRecv& recv, Rank from);
  bool takeNow(Rank from, const Received<EagerFrame>& frame);

  RunContext& context_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::shared_ptr<PointRecv>> receives_;  // not yet matched, in order
  ReceiveNow* now_ = nullptr;
};

class PointSend final : public Activity {
 public:
  PointSend(Rank peer, int tag, std::span<const std::byte> bytes) : peer(peer), tag(tag), bytes(bytes) {}
  bool step(std::vector<bool>& blockedBulk) override;
  bool finished() const override { return finished_; }
  bool needs(Rank rank) const override { return rank == peer && !finished_ && !outlivesTimeout(); }
  bool cancellable() const override { return lapses && !offered_; }
  bool outlivesTimeout() const override { return lapses && offered_; }
  void giveUp() override { points_->forget(this); }
  void addTraffic(std::span<EdgeBytes> byPeer) const override {
    byPeer[static_cast<std::size_t>(peer)].sends += bytes.size();
  }
  std::string waitingFor() const override;
  bool ordered() const override { return false; }

  const Rank peer;
  const int tag;
  const std::span<const std::byte> bytes;
  std::uint64_t message = 0;   // numbered per peer
  Staging* staging = nullptr;  // of `bytes`, when these come from a device
  std::string arguments;       // with Options::checkAll: "float32[2, 3]"
  bool lapses = false;         // CallOptions::lapses

 private:
  friend class PointToPoint;
  bool offer(RunContext& context);

  PointToPoint* points_ = nullptr;  // set by PointToPoint::start()
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
  bool step(std::vector<bool>& blockedBulk) override;
  bool finished() const override { return finished_; }
  bool needs(Rank rank) const override { return !finished_ && (rank == peer || rank == source_); }
  bool needsSomePeer() const override { return peer < 0 && source_ < 0; }
  bool cancellable() const override { return lapses && source_ < 0; }
  bool outlivesTimeout() const override { return lapses && source_ >= 0; }
  void giveUp() override { points_->giveUp(*this); }
  std::string waitingFor() const override;
  bool ordered() const override { return false; }
  Rank sourceRank() const override { return isDone() ? source_ : -1; }
  Rank matchedRank() const override { return source_; }
  void addTraffic(std::span<EdgeBytes> byPeer) const override {
    if (source_ >= 0) {
      byPeer[static_cast<std::size_t>(source_)].receives += bytes.size();
    }
  }

  const Rank peer;
  const int tag;
  const std::span<std::byte> bytes;
  std::string arguments;  // as PointSend's
  bool lapses = false;    // CallOptions::lapses; with a peer only, not kAnySource

 private:
  friend class PointToPoint;

  StoreHint storeHint() const;  // for each part of the message

  PointToPoint* points_ = nullptr;  // set by PointToPoint::start()
  Rank source_ = -1;
  std::uint64_t message_ = 0;
  Reach reach_ = Reach::kNone;
  RemoteAddress address_;
  bool matched_ = false;  // an offer was matched; only the transfer is left
  bool grantSent_ = false;
  Clock::time_point matchedAt_{};  // only if the way was chosen by chooseWay()
  std::size_t received_ = 0;       // or requested, for fetches
  FetchCount fetches_;
  bool finished_ = false;
};

}  // namespace shardwire::internal
