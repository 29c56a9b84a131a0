// The queues that one rank holds in one group, and the links of other ranks that use these queues.
//
// Changes are events, which run one at a time and outside of every lock: on the thread that brings a message (a waiting
// caller or the progress thread) or on the thread of a local caller. While a thread runs events, other threads only add
// events. Methods from any thread, where nothing else is said.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/queues/held_queue.h"
#include "backend/queues/local_call.h"
#include "shardwire/export.h"

namespace shardwire::internal {

class HeldLink;

class SHARDWIRE_EXPORT QueueHolder : public std::enable_shared_from_this<QueueHolder> {
 public:
  // label: the group's name, for errors.
  explicit QueueHolder(std::string label) : label(std::move(label)) {}

  // Runs `event` soon, perhaps within this call.
  void post(std::function<void()> event);
  // Returns when `event` has run, and throws what the event threw. Not within an event.
  void run(const std::function<void()>& event);

  // The queue with this key, made at the first call. `about`: the queue's arguments, equal on all ranks.
  HeldQueuePtr hold(const std::string& key, const std::string& about, std::size_t capacity, bool survives);
  // Serves `user`, a rank of the group, over a link. `endNotice` is given to nextNotice() when the link has ended: then
  // the caller shuts the link down.
  void addLink(std::shared_ptr<Communicator> link, Rank user, std::uint64_t endNotice);
  // Ends all waits in the queues; `notice`: of the rank that revoked the group.
  void revoke(const std::string& notice);
  std::string notice() const;
  // This rank ends: the end of a link is no failure any more. nextNotice() returns.
  void stop();
  // Waits for the next number given to notify(); nullopt after stop().
  std::optional<std::uint64_t> nextNotice();

  // The rest is for events.
  HeldQueuePtr find(const std::string& key) const;
  HeldQueuePtr find(std::uint32_t number) const { return number < byNumber_.size() ? byNumber_[number] : nullptr; }
  // Calls `action` when the queue is made.
  void whenHeld(const std::string& key, std::function<void()> action) { openings_[key].push_back(std::move(action)); }
  void notify(std::uint64_t number);
  // `call` waits: the caller's thread drives the link of the latest message.
  void addWait(const LocalCallPtr& call);
  void removeWait(const LocalCallPtr& call) { waits_.erase(call); }
  void useFirst(const std::shared_ptr<HeldLink>& link) { latest_ = link; }
  void removeLink(const std::shared_ptr<HeldLink>& link);
  bool isStopped() const;

  const std::string label;

 private:
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::function<void()>> events_ SW_GUARDED_BY(mutex_);
  bool isRunning_ SW_GUARDED_BY(mutex_) = false;
  std::deque<std::uint64_t> notices_ SW_GUARDED_BY(mutex_);
  bool isStopped_ SW_GUARDED_BY(mutex_) = false;
  std::string revoked_ SW_GUARDED_BY(mutex_);
  // Of events only.
  std::map<std::string, HeldQueuePtr> held_;
  std::vector<HeldQueuePtr> byNumber_;
  std::map<std::string, std::vector<std::function<void()>>> openings_;
  std::vector<std::shared_ptr<HeldLink>> links_;
  std::shared_ptr<HeldLink> latest_;  // brought the latest message
  std::unordered_set<LocalCallPtr> waits_;
};

}  // namespace shardwire::internal
