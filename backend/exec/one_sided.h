// One-sided access to symmetric memory of ranks that do not share memory. Puts, gets and atomic operations travel as
// control frames, and the thread that polls on the owner's rank carries the requests out: the progress thread when no
// other thread polls. The owner's program takes no part.
//
//   caller                                   owner
//   start(request): into the peer's queue
//   step: put, get, word, flush frames ────► each frame is carried out when drained, in order
//   PendingReply, oldest first         ◄──── reply: elements, a word, or nothing (flush)
//
// Order: requests to one peer are sent in the order of their start, and control frames stay in order, so an owner
// carries out one caller's requests in this order too. A get without room for the answer is still read before the next
// request is handled. This order is the promise of fence(), and the reason why a signal comes after the bytes. A put is
// over for its caller when its bytes are in frames. A flush is answered after all earlier requests are done, and
// quiet() waits for this answer. A caller has at most kMaxAsked unanswered requests, so that an owner owes few answers.
// Everything here is under the engine's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/exec/activity.h"
#include "ops/boxes/strided_runs.h"

namespace shardwire::internal {

class OneSided;

// A box of a part of a block: byte strides, the first element's place.
struct PartBox {
  std::uint64_t block = 0;
  std::uint64_t offset = 0;
  std::size_t elemBytes = 1;
  Dims shape;
  Dims byteStrides;
};

// A part of a block of this rank, as served to peers. No function here waits. An error means: the peer asks for
// something that does not exist.
class ServedPart {
 public:
  virtual ~ServedPart() = default;
  virtual Status put(const PartBox& box, Payload elements) = 0;
  // Writes the elements, packed row by row.
  virtual Status get(const PartBox& box, std::byte* elements) = 0;
  virtual Result<std::uint64_t> apply(const WordFrame& word) = 0;
  // The rank makes no more requests to the part: the rank dropped the part, is gone, or the group ended.
  virtual void dropped(Rank peer) = 0;
};

// A caller's request to one peer, or (Quiet) to several.
class OneSidedRequest : public Activity {
 public:
  bool step(std::vector<bool>& blockedBulk) override;
  bool ordered() const override { return false; }
  // Sends to the peer as much as there is room for. True: everything is sent.
  virtual bool send(OneSided& all, Rank peer) = 0;
  // Takes the answer to part `part` of the request. False: the answer has the wrong length.
  virtual bool take(Payload elements, std::uint32_t part) = 0;

 protected:
  friend class OneSided;
  OneSided* all_ = nullptr;  // set by OneSided::start()
};

class OneSided {
 public:
  explicit OneSided(RunContext& context);
  ~OneSided();
  OneSided(const OneSided&) = delete;
  OneSided& operator=(const OneSided&) = delete;

  // ---- the caller's side
  // Behind what was started before, towards each of `peers`.
  void start(const std::shared_ptr<OneSidedRequest>& request, std::span<const Rank> peers);
  bool step(OneSidedRequest& request);
  Status onReply(Rank from, const Received<ReplyFrame>& frame);
  // Peers that have not confirmed yet that all requests are done.
  std::vector<Rank> unquiet() const;
  // noteSilent(): a request without an answer was sent to the peer. noteFlush(): a flush was sent; the peer answers the
  // flush when all earlier requests are done.
  void noteSilent(Rank peer) { this->peer(peer).isDirty = true; }
  void noteFlush(Rank peer) { this->peer(peer).isDirty = false; }
  // The number for a request that waits for an answer; 0: too many requests are unanswered.
  std::uint64_t nextRequest(Rank peer) const;
  void expect(Rank peer, std::shared_ptr<OneSidedRequest> request, std::uint32_t part);
  RunContext& context() const { return context_; }
  // True when no group of the process has anything to wait for: a look without any lock.
  static bool isAllQuiet();
  // The group failed, and the failure was reported: nothing is waited for any more.
  void forget();

  // ---- the owner's side
  void serve(std::uint64_t block, std::shared_ptr<ServedPart> part);
  // askers: the ranks that reach the part only by requests. A free of the part waits for these ranks.
  void expectRequests(std::uint64_t block, std::vector<Rank> askers);
  void withdraw(std::uint64_t block);
  // Requests may come at any time.
  bool isServing() const { return numAsked_ > 0 && !hasEnded_; }
  Status onPut(Rank from, const Received<PutFrame>& frame);
  Status onGet(Rank from, const Received<GetFrame>& frame);
  Status onWord(Rank from, const Received<WordFrame>& frame);
  Status onFlush(Rank from, const Received<FlushFrame>& frame);
  Status onDrop(Rank from, const Received<DropFrame>& frame);
  // This rank has dropped the peer's part.
  void drop(Rank peer, std::uint64_t block);
  // Sends owed answers, as far as there is room; true when anything was sent.
  bool pay();
  bool isOwing() const { return numOwed_ > 0; }
  // The peer died or left.
  void gone(Rank peer);
  // The group failed or ended: no requests are carried out any more.
  void end();

 private:
  struct Served {
    std::shared_ptr<ServedPart> part;
    std::vector<Rank> askers;
  };
  struct PendingReply {
    std::shared_ptr<OneSidedRequest> request;
    std::uint32_t part = 0;
  };
  // A frame that could not be sent at once: a reply with a word, the elements of a box or nothing; or a drop.
  struct Owed {
    std::uint64_t request = 0;  // 0: a drop
    std::uint64_t word = 0;     // or the number of the dropped block
    bool isWord = false;
    bool isBox = false;
    PartBox box;
    std::vector<std::byte> elements;  // of the box, after the read
  };
  struct Peer {
    std::deque<std::shared_ptr<OneSidedRequest>> toSend;  // in the order of their start
    std::deque<PendingReply> awaited;
    std::uint64_t lastRequest = 0;
    std::deque<Owed> owed;
    bool isDirty = false;    // something was sent since the last flush
    bool isUnquiet = false;  // counted in numUnquietPeers
  };
  // Made when first needed: empty queues take 2 KiB.
  Peer& peer(Rank rank);
  Peer* peerOrNull(Rank rank) const { return peers_[static_cast<std::size_t>(rank)].get(); }
  // Null: the group has ended, or the peer is gone and this rank has dropped the block since.
  Status find(Rank from, std::uint64_t block, ServedPart** part) const;
  Status owe(Rank to, Owed owed);
  Result<bool> sendOwed(Rank to, const Owed& owed);
  void count(Peer& peer);

  RunContext& context_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<bool> isGone_;  // by rank: earlier frames of a gone rank may still come
  std::unordered_map<std::uint64_t, Served> served_;
  std::size_t numAsked_ = 0;  // entries of served_ with askers
  std::size_t numOwed_ = 0;
  bool hasEnded_ = false;
  bool isForgotten_ = false;
};

}  // namespace shardwire::internal
