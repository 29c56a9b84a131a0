// Puts of a link's user. A put whose bytes came within the request is complete at once. Otherwise the put is given to
// the queue, and the bytes are received when there is room. The entries of a transaction are received at once and kept
// apart until the user commits.
#include "backend/queues/held_link.h"

namespace shardwire::internal {

void HeldLink::put(const QueueMessage& message, const HeldQueuePtr& queue) {
  hasPut_.insert(queue);
  const auto entry = std::make_shared<QueueEntry>();
  entry->head = message.head;
  const auto putting = std::make_shared<Putting>();
  putting->entries = {entry};
  if (message.parts.has_value()) {
    entry->parts = *message.parts;
  } else {
    putting->missing = 1;  // until fetch() has counted the parts
    putting->fetch = [self = shared_from_this(), message, queue, putting, entry] {
      self->guarded([&] {
        self->fetch(message, queue, putting, entry, nullptr);
        --putting->missing;
      });
    };
  }
  start(message, queue, putting);
}

// Gives a put or a transaction to the queue; the answer says how it ended.
void HeldLink::start(const QueueMessage& message, const HeldQueuePtr& queue, const PuttingPtr& putting) {
  putting->source = this;
  putting->notify = [self = shared_from_this(), message](QueueOutcome outcome) {
    self->guarded([&] {
      self->puts_.erase(message.request);
      if (outcome != QueueOutcome::kReady && message.op == QueueOp::kPut) {
        self->dropBytes(message);
      }
      self->answerOutcome(message, outcome);
    });
  };
  puts_[message.request] = {queue, putting, message};
  queue->put(putting, (message.flags & kNotBlocking) == 0);
}

void HeldLink::putInTransaction(const QueueMessage& message, const HeldQueuePtr& queue) {
  hasPut_.insert(queue);
  PuttingPtr& putting = transactions_[message.value];
  if (putting == nullptr) {
    putting = std::make_shared<Putting>();
    putting->source = this;
  }
  const auto entry = std::make_shared<QueueEntry>();
  entry->head = message.head;
  putting->entries.push_back(entry);
  const auto isHere = [self = shared_from_this(), message] { self->answer(message, QueueOp::kOk); };
  if (message.parts.has_value()) {
    entry->parts = *message.parts;
    return isHere();
  }
  fetch(message, queue, putting, entry, isHere);
}

// Brings the bytes of an entry; `then` is called when all are here.
void HeldLink::fetch(const QueueMessage& message, const HeldQueuePtr& queue, const PuttingPtr& putting,
                     const QueueEntryPtr& entry, std::function<void()> then) {
  const auto left = std::make_shared<std::size_t>(1);
  const auto oneIsHere = [self = shared_from_this(), queue, putting, left, then = std::move(then)] {
    if (--*left == 0 && then != nullptr) {
      then();
    }
  };
  for (const std::uint64_t size : message.partSizes) {
    Result<QueuePart> part = newQueuePart(size);
    if (!part.isOk()) {
      return end(part.status());
    }
    entry->parts.push_back(*part);
    if (size > 0) {
      ++*left;
      ++putting->missing;
      receive(*part, tagOfRequest(message.request), [this, oneIsHere, putting, queue] {
        --putting->missing;
        oneIsHere();
        queue->arrived(this);
      });
    }
  }
  oneIsHere();
}

// Receives and drops bytes sent in vain: a receive must match every send.
void HeldLink::dropBytes(const QueueMessage& message) {
  for (const std::uint64_t size : message.parts.has_value() ? std::vector<std::uint64_t>() : message.partSizes) {
    const Result<QueuePart> waste = newQueuePart(size);
    if (!waste.isOk()) {
      return end(waste.status());
    }
    if (size > 0) {
      receive(*waste, tagOfRequest(message.request), [] {});
    }
  }
}

void HeldLink::commit(const QueueMessage& message, const HeldQueuePtr& queue) {
  const auto found = transactions_.extract(message.value);
  start(message, queue, found.empty() ? std::make_shared<Putting>() : found.mapped());
}

}  // namespace shardwire::internal
