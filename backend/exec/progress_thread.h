// The thread that moves operations without a waiting caller, for all groups of this process. Looks at each group with
// operations in flight, sleeps on the process's bell when no group moves, and looks at idle groups ten times a second.
// Also runs the callbacks of operations completed by the thread; while a callback keeps the thread for long, a follower
// takes the lead (ProgressRole).
//
// One object per bell, and so per process; begins with the first group and ends with the last. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/progress_role.h"
#include "backend/transport/transport.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// A group, as seen by the thread.
class Progressed {
 public:
  struct Look {
    bool moved = false;
    bool lostLead = false;  // the group's callbacks took long, and another thread leads by now
    Deadline nextLook{};    // if the bell does not ring before
  };
  virtual ~Progressed() = default;
  // Moves everything possible without waiting. Arms the process's bell if something is in flight.
  virtual Look lookAsLeader() = 0;
};

class ProgressThread {
 public:
  static std::shared_ptr<ProgressThread> of(std::shared_ptr<ProgressBell> bell);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Starts the thread, unless the thread runs already, as mostly since of(). kSystem when the system gives no thread.
  Status start();
  void add(const std::shared_ptr<Progressed>& group);
  // Returns when no other thread looks at the group, or ever will. In a callback: when no other thread does anything
  // but run the group's callbacks.
  void remove(const Progressed* group);
  void ring() { state_->bell->ring(); }
  // Around callbacks on the leading thread, within lookAsLeader(), which touches nothing of a removed group afterwards.
  // leaveCallbacks: false when another thread leads by now.
  void enterCallbacks(std::uint64_t* turn);
  bool leaveCallbacks(std::uint64_t turn);

 private:
  // A group in the list. isRemoved and numInside are seq_cst: of an entering and a removing thread, at least one sees
  // the other.
  struct Entry {
    std::weak_ptr<Progressed> group;
    const Progressed* key;  // the same pointer, for the search
    std::atomic<bool> isRemoved{false};
    std::atomic<int> numInside{0};       // threads that look at the group now
    std::atomic<int> numInCallbacks{0};  // of these, threads that run callbacks
  };
  using Entries = std::vector<std::shared_ptr<Entry>>;

  // Shared with the threads, which may outlive this object: a callback may have dropped the last group.
  struct State {
    std::shared_ptr<ProgressBell> bell;
    ProgressRole role;
    std::atomic<bool> stop{false};
    Mutex mutex;
    ConditionVariable changed;
    // Replaced, never changed: a thread goes through one list while groups come and go.
    std::shared_ptr<const Entries> groups SW_GUARDED_BY(mutex) = std::make_shared<const Entries>();

    void follow(bool leadsFirst);
    void lead();
    bool enter(Entry& entry);
    void leave(Entry& entry);
    void notifyRemoval(const Entry& entry);
  };
  static thread_local Entry* entered;  // the entry that this thread is inside of: a callback may end its own group
  static thread_local bool isCounted;  // in numInCallbacks of that entry

  explicit ProgressThread(std::shared_ptr<ProgressBell> bell);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  Mutex threadsMutex_;
  std::vector<std::thread> threads_ SW_GUARDED_BY(threadsMutex_);
};

}  // namespace shardwire::internal
