// One-sided access to symmetric memory of ranks that do not share memory: puts, gets and atomic operations travel as control frames, and
// whoever polls on the owner's rank does them there, its progress thread where nobody else does. The owner's program takes no part.
//
//   caller                                   owner
//   start(request): into the peer's queue
//   step: put, get, word, flush frames ────► as they are drained: does each at once, in their order
//   PendingReply, oldest first         ◄──── reply: elements, a word, or nothing (flush)
//
// Order: requests to one peer are sent in the order in which they were started, and control frames stay in order; so are done all of one
// caller's: an answer for which there is no room is read all the same before the next request is looked at. That is what fence() promises,
// and why a signal comes after the bytes. A put is over for its caller when its bytes are in frames; a flush is answered after all that
// came before it, which is what quiet() waits for. A caller asks for so much at a time (kMaxAsked), so that what an owner owes stays small.
// Under the engine's lock, all of it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
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

// What this rank lets its peers do with its part of a block. Nothing here waits. An error: the peer asks for what is not there.
class ServedPart {
 public:
  virtual ~ServedPart() = default;
  virtual Status put(const PartBox& box, Payload elements) = 0;
  // Writes the elements, packed row by row.
  virtual Status get(const PartBox& box, std::byte* elements) = 0;
  virtual Result<std::uint64_t> apply(const WordFrame& word) = 0;
  // That rank asks for nothing of it any more: it said so, it is gone, or the group ended.
  virtual void dropped(Rank peer) = 0;
};

// What a caller asked of one peer, or (Quiet) of several.
class OneSidedRequest : public Activity {
 public:
  bool step(std::vector<bool>& blockedBulk) override;
  bool ordered() const override { return false; }
  // Sends to the peer what there is room for. True: all of it is sent.
  virtual bool send(OneSided& all, Rank peer) = 0;
  // The answer to a part of it. False: it is not as long as it must be.
  virtual bool take(Payload elements, std::uint32_t part) = 0;

 protected:
  friend class OneSided;
  OneSided* all_ = nullptr;  // set by its start()
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
  // Peers that did not say yet that all is done.
  std::vector<Rank> unquiet() const;
  // Something was sent to the peer that it does not answer; a flush was, which it answers when all of that is done.
  void noteSilent(Rank peer) { this->peer(peer).isDirty = true; }
  void noteFlush(Rank peer) { this->peer(peer).isDirty = false; }
  // For a request that waits for an answer: the number to send; 0: too much was asked already.
  std::uint64_t nextRequest(Rank peer) const;
  void expect(Rank peer, std::shared_ptr<OneSidedRequest> request, std::uint32_t part);
  RunContext& context() const { return context_; }
  // In no group of the process anything is to be waited for: a look without any lock.
  static bool isAllQuiet();
  // The group failed, and was heard to: nothing is waited for any more.
  void forget();

  // ---- the owner's side
  void serve(std::uint64_t block, std::shared_ptr<ServedPart> part);
  // askers: who reaches the part by requests alone, and is waited for when it is given back.
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
  // Sends what is owed, as far as there is room; true when anything went.
  bool pay();
  bool isOwing() const { return numOwed_ > 0; }
  // The peer died or left.
  void gone(Rank peer);
  // The group failed or ended: nothing is done for anybody any more.
  void end();
  bool hasEnded() const { return hasEnded_; }

 private:
  struct Served {
    std::shared_ptr<ServedPart> part;
    std::vector<Rank> askers;
  };
  struct PendingReply {
    std::shared_ptr<OneSidedRequest> request;
    std::uint32_t part = 0;
  };
  // What could not be sent at once: a reply with a word, the elements of a box or nothing; or a drop.
  struct Owed {
    std::uint64_t request = 0;  // 0: a drop
    std::uint64_t word = 0;     // or the block that is dropped
    bool isWord = false;
    bool isBox = false;
    PartBox box;
    std::vector<std::byte> elements;  // of the box, once they were read
  };
  struct Peer {
    std::deque<std::shared_ptr<OneSidedRequest>> toSend;  // in the order of their start
    std::deque<PendingReply> awaited;
    std::uint64_t lastRequest = 0;
    std::deque<Owed> owed;
    bool isDirty = false;    // something was sent since the last flush
    bool isUnquiet = false;  // is counted as such
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
  std::vector<bool> isGone_;  // by rank: what it sent before may still come
  std::unordered_map<std::uint64_t, Served> served_;
  std::size_t numAsked_ = 0;  // of them: those with askers
  std::size_t numOwed_ = 0;
  bool hasEnded_ = false;
  bool isForgotten_ = false;
};

}  // namespace shardwire::internal
