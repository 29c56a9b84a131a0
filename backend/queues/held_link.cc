// The link always receives the user's next frame. A frame is a request; a long head is received first. A put is
// admitted to the queue, the bytes are received, and the answer goes out when the entry is visible. A get waits in the
// queue; an entry handed out is kept until the user confirms the arrival (kTaken), or goes back. When the link breaks,
// the user's waits end, and incomplete puts are dropped. An exception, as of memory that is not there, ends the link
// too: without its next receive the link would be silent for ever.
#include "backend/queues/held_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace shardwire::internal {

namespace {

// "died (pid 12 on host a)" out of a link's error; ranks in the error are not ranks of the user's group.
std::string howItEnded(const Status& why) {
  const std::string& error = why.message();
  const std::size_t begin = error.find(" (pid ");
  const std::size_t end = begin == std::string::npos ? begin : error.find(')', begin);
  if (end == std::string::npos || end + 2 > error.size()) {
    return (why.code() == StatusCode::kSystem ? "lost the link: " : "broke the link: ") + error;
  }
  const std::size_t stop = std::min(error.find_first_of(";:", end), error.size());
  std::string what = error.substr(end + 2, stop - std::min(end + 2, stop));
  what.erase(what.find_last_not_of(' ') + 1);
  return what + error.substr(begin, end + 1 - begin);
}

Status broken(std::string why) {
  return {StatusCode::kInternal, std::move(why)};
}

}  // namespace

Status HeldLink::unserved(const std::exception& error) {
  return {StatusCode::kSystem, fmt::format("the rank that holds the queue could not serve the link: {}", error.what())};
}

// ---- requests

void HeldLink::lendTo(LocalCall& call) const {
  nextFrame_ != nullptr ? call.drive(static_cast<const Activity&>(*nextFrame_), this) : call.driveNothing();
}

// Calls `then` in an event when the bytes are here; ends the link when the bytes cannot come.
void HeldLink::receive(const QueuePart& into, int tag, std::function<void()> then) {
  const auto ended = [self = shared_from_this(), then = std::move(then)](const Status& status) {
    self->holder_->post([self, then, status] {
      try {
        status.isOk() ? then() : self->end(status);
      } catch (const std::exception& error) {
        self->end(unserved(error));
      }
    });
  };
  Result<WorkPtr> work = receiveBytes(*link_, kUserEnd, tag, into, ended);
  if (!work.isOk()) {
    ended(work.status());
  } else if (tag == kRequestsTag) {
    nextFrame_ = std::move(work).value();
  }
}

void HeldLink::listen() {
  receive({frame_, frame_->data(), frame_->size()}, kRequestsTag, [this] { onFrame(); });
}

void HeldLink::onFrame() {
  if (isOver_) {
    return;
  }
  const Result<std::size_t> outside = headOutside(*frame_);
  if (!outside.isOk()) {
    return end(outside.status());
  }
  if (*outside == 0) {
    return onMessage({});
  }
  const auto rest = std::make_shared<std::string>(*outside, '\0');  // follows under the request's tag
  receive({rest, reinterpret_cast<std::byte*>(rest->data()), rest->size()}, tagOfRequest(requestOf(*frame_)),
          [this, rest] { onMessage(std::move(*rest)); });
}

void HeldLink::onMessage(std::string rest) {
  if (isOver_) {
    return;
  }
  Result<QueueMessage> message = decodeMessage(*frame_, std::move(rest));
  if (!message.isOk()) {
    return end(message.status());
  }
  if (holder_->isStopped()) {
    return;
  }
  holder_->useFirst(shared_from_this());
  serve(*message);
  if (!isOver_) {
    listen();
  }
}

void HeldLink::serve(const QueueMessage& message) {
  switch (message.op) {
    case QueueOp::kOpen:
      return open(message);
    case QueueOp::kRollback:
      transactions_.erase(message.value);
      return;
    case QueueOp::kCancel:
      return cancel(message);
    case QueueOp::kTaken:
      return taken(message.request);
    case QueueOp::kPing:
      return answer(message, QueueOp::kOk);
    case QueueOp::kBye:
      hasLeft_ = true;
      return;
    default:
      break;
  }
  const HeldQueuePtr queue = holder_->find(message.queue);
  if (queue == nullptr) {
    return end(broken(fmt::format("a message of a queue is for queue {}, which does not exist", message.queue)));
  }
  switch (message.op) {
    case QueueOp::kPut:
      return (message.flags & kInTransaction) != 0 ? putInTransaction(message, queue) : put(message, queue);
    case QueueOp::kCommit:
      return commit(message, queue);
    case QueueOp::kGet:
      return get(message, queue, true);
    case QueueOp::kWait:
      return get(message, queue, false);
    case QueueOp::kSize:
      return answer(message, QueueOp::kOk, static_cast<std::int64_t>(queue->size()));
    case QueueOp::kClose:
      queue->close();
      return answer(message, QueueOp::kOk);
    default:
      return end(broken(fmt::format("a message of a queue is of kind {}", static_cast<int>(message.op))));
  }
}

// ---- answers

void HeldLink::answer(const QueueMessage& to, QueueOp op, std::int64_t value, std::string head,
                      const std::vector<QueuePart>& parts) {
  if (isOver_ || !holder_->notice().empty()) {  // the end of the link says more
    return;
  }
  const QueueMessage reply{op, 0, to.queue, to.request, value, std::move(head), {}, {}};
  if (const Status status = sendMessage(*link_, kUserEnd, tagOfRequest(to.request), reply, parts); !status.isOk()) {
    holder_->post([self = shared_from_this(), status] { self->end(status); });
  }
}

void HeldLink::answerOutcome(const QueueMessage& to, QueueOutcome outcome, const std::string& failure) {
  switch (outcome) {
    case QueueOutcome::kReady:
      return answer(to, QueueOp::kOk);
    case QueueOutcome::kNothing:
      return answer(to, QueueOp::kNothing);
    case QueueOutcome::kOver:
      return answer(to, QueueOp::kOver);
    default:
      return answer(to, QueueOp::kFailed, 0, failure);
  }
}

// The head: the length of the key, the key, and the arguments of the user's Queue.
void HeldLink::open(const QueueMessage& message) {
  std::uint32_t keyBytes = 0;
  if (message.head.size() < sizeof keyBytes) {
    return end(broken("a request of a queue has no key"));
  }
  std::memcpy(&keyBytes, message.head.data(), sizeof keyBytes);
  const std::string key = message.head.substr(sizeof keyBytes, keyBytes);
  const std::string about = message.head.substr(sizeof keyBytes + key.size());
  const HeldQueuePtr held = holder_->find(key);
  if (held == nullptr) {                                         // the Queue was not made on this rank yet
    holder_->whenHeld(key, [weak = weak_from_this(), message] {  // weak: the queue may never be made
      if (const std::shared_ptr<HeldLink> self = weak.lock(); self != nullptr) {
        self->guarded([&] { self->open(message); });
      }
    });
  } else if (held->about != about) {
    answer(message, QueueOp::kMismatch, 0, held->about);
  } else {
    answer(message, QueueOp::kOk, held->number);
  }
}

// ---- getting

void HeldLink::get(const QueueMessage& message, const HeldQueuePtr& queue, bool takes) {
  const auto getter = std::make_shared<QueueGetter>();
  getter->takes = takes;
  getter->serve = [self = shared_from_this(), queue, to = QueueMessage{message}](
                      const QueueEntryPtr& entry, QueueOutcome why, const std::string& failure) {
    self->guarded([&] {
      if (entry == nullptr) {
        self->gets_.erase(to.request);
        return self->answerOutcome(to, why, failure);
      }
      self->gets_.at(to.request).entry = entry;
      queue->lend();
      self->answer(to, QueueOp::kOk, static_cast<std::int64_t>(queue->size()), entry->head, entry->parts);
    });
  };
  if (!gets_.try_emplace(message.request, Getting{queue, getter, nullptr}).second) {
    return end(broken(fmt::format("a message of a queue has the number of an earlier request, {}", message.request)));
  }
  queue->get(getter, (message.flags & kNotBlocking) == 0);
}

void HeldLink::taken(std::uint64_t request) {
  if (const auto found = gets_.find(request); found != gets_.end() && found->second.entry != nullptr) {
    const HeldQueuePtr queue = found->second.queue;
    gets_.erase(found);
    queue->settle(1);
  }
}

// A user gave up: ends the user's wait, and returns an entry that was handed out and not taken.
void HeldLink::cancel(const QueueMessage& message) {
  const auto getting = gets_.extract(message.request);
  const auto putting = puts_.extract(message.request);
  const bool isWaiting = !getting.empty() && getting.mapped().entry == nullptr;
  if (isWaiting) {
    getting.mapped().queue->forget(getting.mapped().getter);
  } else if (!getting.empty()) {
    getting.mapped().queue->giveBack({getting.mapped().entry});
    getting.mapped().queue->settle(1);
  }
  if (!putting.empty()) {
    const WaitingPut& put = putting.mapped();
    if (!put.putting->isAdmitted && put.message.op == QueueOp::kPut) {
      dropBytes(put.message);
    }
    put.queue->giveUp(put.putting);
  }
  if (isWaiting || !putting.empty()) {
    answer(message, QueueOp::kNothing);  // the user's end learns: nothing more comes
  }
}

// ---- the end

void HeldLink::revoke(const std::string& notice) {
  link_->revoke(notice);
}

// The user is gone: ends the user's waits, and drops incomplete puts.
void HeldLink::end(const Status& why) {
  if (isOver_) {
    return;
  }
  isOver_ = true;
  const auto self = shared_from_this();
  holder_->removeLink(self);
  if (holder_->isStopped()) {
    // This rank has ended the group, and nobody is served any more. Waits refer to this link, and so to the holder, and
    // would keep the entries of all queues.
    for (const auto& [request, getting] : std::exchange(gets_, {})) {
      getting.queue->forget(getting.getter);
      getting.getter->serve = nullptr;
    }
    for (const auto& [request, put] : std::exchange(puts_, {})) {
      put.putting->notify = nullptr;
      put.putting->fetch = nullptr;
    }
    return;
  }
  if (const std::string notice = link_->revocation(); !notice.empty()) {
    holder_->revoke(notice);
  }
  std::map<HeldQueuePtr, std::vector<QueueEntryPtr>> back;
  for (const auto& [request, getting] : std::exchange(gets_, {})) {
    if (getting.entry != nullptr) {
      back[getting.queue].push_back(getting.entry);
    } else {
      getting.queue->forget(getting.getter);
      getting.getter->serve = nullptr;
    }
  }
  for (const auto& [request, put] : std::exchange(puts_, {})) {
    put.queue->giveUp(put.putting);
  }
  for (const auto& [queue, entries] : back) {
    queue->giveBack(entries);
    queue->settle(entries.size());
  }
  transactions_.clear();
  for (const HeldQueuePtr& queue : std::exchange(hasPut_, {})) {
    if (!hasLeft_ && !queue->survives) {
      queue->fail(
          fmt::format("rank {} of group '{}', which had put into it, {}", user_, holder_->label, howItEnded(why)));
    }
  }
  holder_->notify(endNotice_);
}

}  // namespace shardwire::internal
