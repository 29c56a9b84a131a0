// post() puts an event into the list, and runs events unless another thread does. The events of links and of local
// calls change the queues. A local caller that waits drives the link that brought the latest message (local_call.h):
// most often the next message comes over the same link. When a link ends, the callers that drive the link go on with
// another one.
#include "backend/queues/holder.h"

#include <cxxabi.h>

#include <algorithm>
#include <exception>

#include "backend/base/user_call.h"
#include "backend/queues/held_link.h"

namespace shardwire::internal {

// ---- events

void QueueHolder::post(std::function<void()> event) {
  {
    const MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    if (isRunning_) {
      return;
    }
    isRunning_ = true;
  }
  for (;;) {
    std::function<void()> next;
    {
      const MutexLock lock(mutex_);
      if (events_.empty()) {
        isRunning_ = false;
        return;
      }
      next = std::move(events_.front());
      events_.pop_front();
    }
    callUser("an event of a queue", next);
  }
}

void QueueHolder::run(const std::function<void()>& event) {
  struct Ending {  // however the event ends: this call waits for the end
    QueueHolder& holder;
    bool& isDone;
    ~Ending() {
      const MutexLock lock(holder.mutex_);
      isDone = true;
      holder.changed_.notifyAll();
    }
  };
  bool isDone = false;
  std::exception_ptr thrown;
  post([&] {
    const Ending ending{*this, isDone};
    try {
      event();
    } catch (const abi::__forced_unwind&) {  // the end of the thread (user_call.h)
      throw;
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  {
    const MutexLock lock(mutex_);
    while (!isDone) {
      changed_.wait(mutex_);
    }
  }
  if (thrown != nullptr) {
    std::rethrow_exception(thrown);
  }
}

// ---- queues and links

HeldQueuePtr QueueHolder::hold(const std::string& key, const std::string& about, std::size_t capacity, bool survives) {
  HeldQueuePtr found;
  run([&] {
    HeldQueuePtr& held = held_[key];
    if (held == nullptr) {
      byNumber_.push_back(
          std::make_shared<HeldQueue>(about, capacity, survives, static_cast<std::uint32_t>(byNumber_.size())));
      held = byNumber_.back();
    }
    found = held;
    const auto waiting = openings_.extract(key);
    if (!waiting.empty()) {
      std::ranges::for_each(waiting.mapped(), [](const auto& action) { action(); });
    }
  });
  return found;
}

HeldQueuePtr QueueHolder::find(const std::string& key) const {
  const auto found = held_.find(key);
  return found == held_.end() ? nullptr : found->second;
}

void QueueHolder::addLink(std::shared_ptr<Communicator> link, Rank user, std::uint64_t endNotice) {
  const auto held = std::make_shared<HeldLink>(shared_from_this(), std::move(link), user, endNotice);
  post([this, held] {
    links_.push_back(held);
    if (const std::string why = notice(); !why.empty()) {
      held->revoke(why);
    }
    held->start();
    latest_ = held;
    for (const LocalCallPtr& call : waits_) {
      if (!call->drives()) {
        held->lendTo(*call);
      }
    }
  });
}

void QueueHolder::removeLink(const std::shared_ptr<HeldLink>& link) {
  std::erase(links_, link);
  if (latest_ == link) {
    latest_ = links_.empty() ? nullptr : links_.back();
  }
  for (const LocalCallPtr& call : waits_) {
    if (latest_ == nullptr) {
      call->driveNothing();
    } else if (call->drives(link.get())) {
      latest_->lendTo(*call);
    }
  }
}

void QueueHolder::addWait(const LocalCallPtr& call) {
  waits_.insert(call);
  if (latest_ != nullptr) {
    latest_->lendTo(*call);
  }
}

// ---- notices, and the end

void QueueHolder::notify(std::uint64_t number) {
  const MutexLock lock(mutex_);
  notices_.push_back(number);
  changed_.notifyAll();
}

std::optional<std::uint64_t> QueueHolder::nextNotice() {
  const MutexLock lock(mutex_);
  while (notices_.empty() && !isStopped_) {
    changed_.wait(mutex_);
  }
  if (notices_.empty()) {
    return std::nullopt;
  }
  const std::uint64_t number = notices_.front();
  notices_.pop_front();
  return number;
}

void QueueHolder::revoke(const std::string& notice) {
  post([this, notice] {
    {
      const MutexLock lock(mutex_);
      if (!revoked_.empty()) {
        return;
      }
      revoked_ = notice;
    }
    std::ranges::for_each(byNumber_, [&](const HeldQueuePtr& held) { held->revoke(notice); });
    for (const auto& link : std::vector(links_)) {
      link->revoke(notice);
    }
  });
}

std::string QueueHolder::notice() const {
  const MutexLock lock(mutex_);
  return revoked_;
}

void QueueHolder::stop() {
  const MutexLock lock(mutex_);
  isStopped_ = true;
  changed_.notifyAll();
}

bool QueueHolder::isStopped() const {
  const MutexLock lock(mutex_);
  return isStopped_;
}

}  // namespace shardwire::internal
