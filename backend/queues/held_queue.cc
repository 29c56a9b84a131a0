// A put is admitted when there is room, and then the bytes are fetched. A complete put becomes visible after the
// earlier puts of the same source: the putter is notified, and then entries are handed to getters. Returned entries are
// sorted in by number.
#include "backend/queues/held_queue.h"

#include <algorithm>

namespace shardwire::internal {

namespace {

// Releases all references before the call: a cycle of references would keep the bytes.
void end(Putting& putting, QueueOutcome outcome) {
  const auto notify = std::exchange(putting.notify, nullptr);
  putting.fetch = nullptr;
  putting.entries.clear();
  if (notify != nullptr) {
    notify(outcome);
  }
}

void call(QueueGetter& getter, const QueueEntryPtr& entry, QueueOutcome why, const std::string& text = {}) {
  if (const auto serve = std::exchange(getter.serve, nullptr); serve != nullptr) {
    serve(entry, why, text);
  }
}

template <typename List, typename Each>
bool eraseFrom(List& list, const Each& each) {
  const auto found = std::ranges::find(list, each);
  if (found == list.end()) {
    return false;
  }
  list.erase(found);
  return true;
}

// True while the object lives.
class WhileHere {
 public:
  explicit WhileHere(bool& flag) : flag_(flag) { flag_ = true; }
  ~WhileHere() { flag_ = false; }
  WhileHere(const WhileHere&) = delete;
  WhileHere& operator=(const WhileHere&) = delete;

 private:
  bool& flag_;
};

}  // namespace

// ---- putting

void HeldQueue::put(const PuttingPtr& putting, bool mayWait) {
  if (isClosed_) {
    end(*putting, QueueOutcome::kOver);
  } else if (hasRoom(putting->entries.size()) && forRoom_.empty()) {
    admit(putting);
  } else if (mayWait) {
    forRoom_.push_back(putting);
  } else {
    end(*putting, QueueOutcome::kNothing);
  }
}

void HeldQueue::admit(const PuttingPtr& putting) {
  putting->isAdmitted = true;
  putting->room = putting->entries.size();
  reserved_ += putting->room;
  inOrder_[putting->source].push_back(putting);
  if (const auto fetch = std::exchange(putting->fetch, nullptr); fetch != nullptr) {
    fetch();
  }
  arrived(putting->source);
}

void HeldQueue::arrived(const void* source) {
  std::vector<PuttingPtr> visible;
  if (const auto line = inOrder_.find(source); line != inOrder_.end()) {
    while (!line->second.empty() && line->second.front()->missing == 0) {
      visible.push_back(std::move(line->second.front()));
      line->second.pop_front();
      reserved_ -= visible.back()->room;
      for (const QueueEntryPtr& entry : visible.back()->entries) {
        entry->number = nextNumber_++;
        entries_.push_back(entry);
      }
    }
    if (line->second.empty()) {
      inOrder_.erase(line);
    }
  }
  // Before the getters: a getter may end the process with the entry, and the answer would be lost.
  for (const PuttingPtr& putting : visible) {
    end(*putting, QueueOutcome::kReady);
  }
  serve();
}

void HeldQueue::giveUp(const PuttingPtr& putting) {
  eraseFrom(forRoom_, putting);
  const auto line = inOrder_.find(putting->source);
  const bool wasInLine = line != inOrder_.end() && eraseFrom(line->second, putting);
  putting->notify = nullptr;
  putting->fetch = nullptr;
  putting->entries.clear();
  if (wasInLine) {
    reserved_ -= putting->room;
    arrived(putting->source);
  }
  admitWaiting();
}

void HeldQueue::admitWaiting() {
  while (!forRoom_.empty() && hasRoom(forRoom_.front()->entries.size())) {
    const PuttingPtr next = forRoom_.front();
    forRoom_.pop_front();
    admit(next);
  }
}

// ---- getting

void HeldQueue::get(const QueueGetterPtr& getter, bool mayWait) {
  getter->takes ? getters_.push_back(getter) : watchers_.push_back(getter);
  serve();
  if (!mayWait && forget(getter)) {
    call(*getter, nullptr, QueueOutcome::kNothing);
  }
}

void HeldQueue::handOut() {
  const WhileHere handingOut(isHandingOut_);
  while (!entries_.empty() && !getters_.empty()) {
    const QueueEntryPtr entry = std::move(entries_.front());
    const QueueGetterPtr getter = std::move(getters_.front());
    entries_.pop_front();
    getters_.pop_front();
    call(*getter, entry, QueueOutcome::kReady);
    admitWaiting();
  }
}

// Hands out entries, or the reason why none will come. An entry that is handed out makes room for a waiting put, and
// this put calls serve() again: the outer call hands out the put's entry, so the stack does not grow with every getter.
void HeldQueue::serve() {
  if (isHandingOut_) {
    return;
  }
  handOut();
  QueueOutcome why = QueueOutcome::kNone;
  if (!revoked_.empty()) {
    why = QueueOutcome::kFailed;
  } else if (!entries_.empty()) {
    why = QueueOutcome::kReady;
  } else if (isClosed_ && inOrder_.empty() && numLent_ == 0) {
    why = QueueOutcome::kOver;
  } else if (!failure_.empty()) {
    why = QueueOutcome::kFailed;
  }
  if (why == QueueOutcome::kNone) {
    return;
  }
  const std::string text = why != QueueOutcome::kFailed ? "" : revoked_.empty() ? failure_ : revoked_;
  for (const QueueGetterPtr& watcher : std::exchange(watchers_, {})) {
    call(*watcher, nullptr, why, text);
  }
  while (why != QueueOutcome::kReady && !getters_.empty()) {
    const QueueGetterPtr getter = std::move(getters_.front());
    getters_.pop_front();
    call(*getter, nullptr, why, text);
  }
}

bool HeldQueue::forget(const QueueGetterPtr& getter) {
  return getter->takes ? eraseFrom(getters_, getter) : eraseFrom(watchers_, getter);
}

void HeldQueue::giveBack(const std::vector<QueueEntryPtr>& entries) {
  for (const QueueEntryPtr& entry : entries) {
    const auto isBefore = [](const QueueEntryPtr& one, const QueueEntryPtr& other) {
      return one->number < other->number;
    };
    entries_.insert(std::ranges::lower_bound(entries_, entry, isBefore), entry);
  }
  serve();
}

void HeldQueue::settle(std::size_t count) {
  numLent_ -= count;
  serve();
}

// ---- the end

void HeldQueue::fail(const std::string& failure) {
  failure_ = failure_.empty() ? failure : failure_;
  serve();
}

void HeldQueue::close() {
  isClosed_ = true;
  for (const PuttingPtr& putting : std::exchange(forRoom_, {})) {
    end(*putting, QueueOutcome::kOver);
  }
  serve();
}

void HeldQueue::revoke(const std::string& notice) {
  isClosed_ = true;
  revoked_ = notice;
  entries_.clear();
  const auto waiting = std::exchange(forRoom_, {});
  for (const auto& [source, line] : std::exchange(inOrder_, {})) {
    std::ranges::for_each(line, [](const PuttingPtr& putting) { end(*putting, QueueOutcome::kOver); });
  }
  std::ranges::for_each(waiting, [](const PuttingPtr& putting) { end(*putting, QueueOutcome::kOver); });
  serve();
}

}  // namespace shardwire::internal
