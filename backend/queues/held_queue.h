// The contents of one queue on the holder's rank: entries, getters waiting for an entry, putters waiting for room.
// Plain state without threads: all functions run in the events of a QueueHolder, one at a time.
//
// Getters are served in the order of arrival, local or not. The same holds for putters waiting for room. The entries of
// one putter become visible in the order of sending. An entry handed out but not taken (the getter died or gave up)
// goes back to its place.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/queues/message.h"

namespace shardwire::internal {

// One tensor or object: the description (`head`), the bytes, and the place in the order.
struct QueueEntry {
  std::string head;
  std::vector<QueuePart> parts;
  std::uint64_t number = 0;
};
using QueueEntryPtr = std::shared_ptr<QueueEntry>;

enum class QueueOutcome : std::uint8_t { kNone, kReady, kNothing, kOver, kFailed };  // kNone: not known so far

// Waits for an entry, or (takes == false) until there is an entry. `serve(entry or null, why, text of a failure)` is
// called once, and keeps the entry before anything in it can throw: the queue has no longer the entry.
struct QueueGetter {
  bool takes = true;
  std::function<void(QueueEntryPtr, QueueOutcome, const std::string&)> serve;
};
using QueueGetterPtr = std::shared_ptr<QueueGetter>;

// Entries to become visible together: one put, or a transaction. `notify` is called once: kReady, kOver (closed) or
// kNothing (no room).
struct Putting {
  std::vector<QueueEntryPtr> entries;
  int missing = 0;               // parts with bytes still on the way
  const void* source = nullptr;  // the puts of one source keep their order
  bool isAdmitted = false;
  std::size_t room = 0;         // reserved room, in entries
  std::function<void()> fetch;  // starts to bring the bytes, once there is room
  std::function<void(QueueOutcome)> notify;
};
using PuttingPtr = std::shared_ptr<Putting>;

class SHARDWIRE_EXPORT HeldQueue {
 public:
  // capacity 0: no limit. `number`: of the queue, among the queues of its holder.
  HeldQueue(std::string about, std::size_t capacity, bool survives, std::uint32_t number)
      : about(std::move(about)), survives(survives), number(number), capacity_(capacity) {}

  void put(const PuttingPtr& putting, bool mayWait);
  // Bytes of a put of `source` are here: makes complete puts visible, in order, up to the first incomplete put.
  void arrived(const void* source);
  // A putter died or gave up before the put was visible.
  void giveUp(const PuttingPtr& putting);
  void get(const QueueGetterPtr& getter, bool mayWait);
  // Ends the getter's wait. Returns whether the getter was still waiting.
  bool forget(const QueueGetterPtr& getter);
  // Entries handed out and not taken go back to their places in the order.
  void giveBack(const std::vector<QueueEntryPtr>& entries);
  // Getters confirm: an entry was handed out and may still come back, so a closed queue is not over; and `count` such
  // entries were taken or have come back.
  void lend() { ++numLent_; }
  void settle(std::size_t count);
  // A putter died: getters with an empty queue get the failure, since the missing entries are unknown.
  void fail(const std::string& failure);
  // Nothing more can be put; entries in the queue can still be taken.
  void close();
  // Ends everything: all waits, now and later, end with the notice.
  void revoke(const std::string& notice);
  std::size_t size() const { return entries_.size(); }
  struct Counts {
    std::size_t entries = 0;
    std::size_t getters = 0;  // that take
    std::size_t forRoom = 0;  // putters
  };
  Counts counts() const { return {entries_.size(), getters_.size(), forRoom_.size()}; }

  const std::string about;  // the arguments of the Queue, as text
  const bool survives;
  const std::uint32_t number;

 private:
  bool hasRoom(std::size_t count) const { return capacity_ == 0 || entries_.size() + reserved_ + count <= capacity_; }
  void admit(const PuttingPtr& putting);
  void admitWaiting();
  void handOut();
  void serve();

  const std::size_t capacity_;
  std::deque<QueueEntryPtr> entries_;  // by number
  std::deque<QueueGetterPtr> getters_;
  std::vector<QueueGetterPtr> watchers_;  // getters that take nothing
  std::deque<PuttingPtr> forRoom_;
  std::map<const void*, std::deque<PuttingPtr>> inOrder_;  // source -> puts not visible yet, oldest first
  std::size_t reserved_ = 0;                               // room of admitted puts not visible yet
  std::size_t numLent_ = 0;
  bool isClosed_ = false;
  std::string failure_;
  std::string revoked_;
  std::uint64_t nextNumber_ = 0;
  bool isHandingOut_ = false;  // handOut() is on the stack
};
using HeldQueuePtr = std::shared_ptr<HeldQueue>;

}  // namespace shardwire::internal
