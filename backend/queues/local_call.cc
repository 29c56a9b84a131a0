// A waiting thread waits for a WaitFlag, an operation that no engine steps. The flag has the driver of a link's group,
// and so the thread drives this group until an event of the holder completes the flag. An event also gives the thread
// another flag, when the link ends. Without a link the thread sleeps on a condition variable.
#include "backend/queues/local_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "backend/base/interruptible_wait.h"
#include "backend/queues/holder.h"

namespace shardwire::internal {

class WaitFlag final : public Activity {
 public:
  WaitFlag() { description = Description(std::make_shared<const std::string>("a wait in a queue")); }
  bool step(std::vector<bool>&) override { return false; }
  bool finished() const override { return isDone(); }
  bool needs(Rank) const override { return false; }
  std::string waitingFor() const override { return "no entry came"; }
};

LocalCall::LocalCall(std::shared_ptr<QueueHolder> holder, HeldQueuePtr queue)
    : holder_(std::move(holder)), queue_(std::move(queue)) {}

LocalCall::~LocalCall() = default;

// ---- the call

void LocalCall::get(bool takes, bool mayWait) {
  holder_->post([self = shared_from_this(), takes, mayWait] {
    self->begin([&] {
      self->getter_ = std::make_shared<QueueGetter>();
      self->getter_->takes = takes;
      self->getter_->serve = [self = self.get(), kept = self](QueueEntryPtr entry, QueueOutcome why,
                                                              const std::string& failure) {
        self->entry_ = std::move(entry);
        if (self->entry_ != nullptr) {
          self->isLent_ = true;
          self->queue_->lend();
        }
        self->numLeft_ = self->queue_->size();
        self->end(why, failure);
      };
      self->queue_->get(self->getter_, mayWait);
    });
  });
}

void LocalCall::put(std::vector<QueueEntryPtr> entries, bool mayWait) {
  holder_->post([self = shared_from_this(), entries = std::move(entries), mayWait]() mutable {
    self->begin([&] {
      self->putting_ = std::make_shared<Putting>();
      self->putting_->entries = std::move(entries);
      self->putting_->source =
          self->holder_.get();  // all local putters are one source: their puts are complete at once
      self->putting_->notify = [kept = self](QueueOutcome outcome) { kept->end(outcome); };
      self->queue_->put(self->putting_, mayWait);
    });
  });
}

// Within an event. An exception, as of memory that is not there, ends the call: the caller would wait for ever.
template <typename Body>
void LocalCall::begin(Body&& body) {
  try {
    std::forward<Body>(body)();
    if (!isOver()) {
      holder_->addWait(shared_from_this());
    }
  } catch (const std::exception& error) {
    if (isOver()) {
      throw;  // of another call
    }
    leaveQueue();
    returnEntry();
    end(QueueOutcome::kFailed, fmt::format("the rank that holds the queue could not do the call: {}", error.what()));
  }
}

void LocalCall::end(QueueOutcome outcome, const std::string& failure) {
  holder_->removeWait(shared_from_this());
  outcome_ = outcome;
  failure_ = failure;
  isOver_.store(true, std::memory_order_release);
  replaceFlag(nullptr);
  for (const std::uint64_t notice : std::exchange(endNotices_, {})) {
    holder_->notify(notice);
  }
}

void LocalCall::whenOver(std::uint64_t notice) {
  holder_->post([self = shared_from_this(), notice] {
    if (self->isOver()) {
      self->holder_->notify(notice);
    } else {
      self->endNotices_.push_back(notice);
    }
  });
}

bool LocalCall::giveUp() {
  bool wasWaiting = false;
  holder_->run([&] {
    wasWaiting = !isOver();
    if (wasWaiting) {
      leaveQueue();
      end(QueueOutcome::kNothing);
    }
  });
  return wasWaiting;
}

void LocalCall::leaveQueue() {
  if (getter_ != nullptr) {
    queue_->forget(getter_);
    getter_->serve = nullptr;
  }
  if (putting_ != nullptr) {
    queue_->giveUp(putting_);
  }
}

void LocalCall::taken() {
  holder_->post([self = shared_from_this()] { self->settle(); });
}

void LocalCall::giveBack() {
  if (!giveUp()) {
    holder_->post([self = shared_from_this()] { self->returnEntry(); });
  }
}

void LocalCall::returnEntry() {
  if (const QueueEntryPtr entry = std::exchange(entry_, nullptr); entry != nullptr) {
    queue_->giveBack({entry});
    settle();
  }
}

void LocalCall::settle() {
  if (std::exchange(isLent_, false)) {
    queue_->settle(1);
  }
}

// ---- waiting

void LocalCall::replaceFlag(std::shared_ptr<WaitFlag> flag) {
  std::shared_ptr<WaitFlag> before;
  {
    const MutexLock lock(mutex_);
    before = std::exchange(flag_, std::move(flag));
    changed_.notifyAll();
  }
  if (before != nullptr) {
    Activity::complete(before, Status::ok());
    before->wakeWaiters();
  }
}

void LocalCall::drive(const Activity& work, const void* link) {
  link_ = link;
  auto flag = std::make_shared<WaitFlag>();
  work.lendDriver(*flag);
  replaceFlag(std::move(flag));
}

void LocalCall::driveNothing() {
  link_ = nullptr;
  replaceFlag(nullptr);
}

Status LocalCall::wait(Deadline until) {
  constexpr Duration kNap = std::chrono::milliseconds(1);
  InterruptibleWait slices(until);
  while (!isOver()) {
    std::shared_ptr<WaitFlag> flag;
    {
      const MutexLock lock(mutex_);
      flag = flag_;
      if (flag == nullptr && !isOver()) {
        changed_.waitUntil(mutex_, std::min(until, slices.sliceEnd()));
      }
    }
    if (flag != nullptr) {
      if (Status status = flag->wait(until); !status.isOk()) {
        return isOver() ? Status::ok() : status;
      }
      if (!flag->isDone()) {  // the link has ended, and the event that says so is about to come
        std::this_thread::sleep_for(kNap);
      }
    } else if (!isOver() && slices.isInterrupted()) {
      return interruptedStatus("a wait in a queue");
    }
    if (!isOver() && Clock::now() >= until) {
      return {StatusCode::kTimeout, "a wait in a queue is not over"};
    }
  }
  return Status::ok();
}

}  // namespace shardwire::internal
