// A get, a put or a wait of the holder's own rank, and how the caller's thread waits for the end: the thread drives a
// link of the holder, like a receiver of messages of this link. So the caller is served without another thread. One
// object per call; methods from any thread, where nothing else is said.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/activity.h"
#include "backend/queues/held_queue.h"
#include "shardwire/export.h"

namespace shardwire::internal {

class QueueHolder;
class WaitFlag;

class SHARDWIRE_EXPORT LocalCall : public std::enable_shared_from_this<LocalCall> {
 public:
  LocalCall(std::shared_ptr<QueueHolder> holder, HeldQueuePtr queue);
  ~LocalCall();

  // One of these, once. get(): takes an entry, or, without `takes`, waits until there is an entry.
  void get(bool takes, bool mayWait);
  void put(std::vector<QueueEntryPtr> entries, bool mayWait);

  // Gives `notice` to the holder's notices when the call is over.
  void whenOver(std::uint64_t notice);
  // Ok when the call is over, otherwise kTimeout or kInterrupted.
  Status wait(Deadline until);
  bool isOver() const { return isOver_.load(std::memory_order_acquire); }
  // Ends the wait. Returns whether the call was still waiting: then the call has taken and put nothing.
  bool giveUp();
  // A get() that was served gets one of these calls. taken(): the caller has the entry. Until then the entry may come
  // back, and a closed queue is not over.
  void taken();
  // Ends the wait, and returns a taken entry to the entry's place.
  void giveBack();

  // Only when the call is over.
  QueueOutcome outcome() const { return outcome_; }
  const std::string& failure() const { return failure_; }
  const QueueEntryPtr& entry() const { return entry_; }
  std::size_t numLeft() const { return numLeft_; }

  // For events of the holder.
  void drive(const Activity& work, const void* link);
  void driveNothing();
  bool drives() const { return link_ != nullptr; }
  bool drives(const void* link) const { return link_ == link; }

 private:
  template <typename Body>
  void begin(Body&& body);
  void leaveQueue();
  void settle();
  void returnEntry();
  void end(QueueOutcome outcome, const std::string& failure = {});
  void replaceFlag(std::shared_ptr<WaitFlag> flag);

  const std::shared_ptr<QueueHolder> holder_;
  const HeldQueuePtr queue_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::shared_ptr<WaitFlag> flag_ SW_GUARDED_BY(mutex_);
  // release: pairs with isOver(), whose callers read the results
  std::atomic<bool> isOver_{false};
  QueueOutcome outcome_ = QueueOutcome::kNone;
  std::string failure_;
  QueueEntryPtr entry_;
  std::size_t numLeft_ = 0;
  // Of events only.
  bool isLent_ = false;         // the queue waits for settle()
  const void* link_ = nullptr;  // the driven one
  std::vector<std::uint64_t> endNotices_;
  QueueGetterPtr getter_;
  PuttingPtr putting_;
};
using LocalCallPtr = std::shared_ptr<LocalCall>;

}  // namespace shardwire::internal
