// The thread that moves the operations of all groups of this process that nobody waits for. It looks at each group that has something in
// flight, sleeps on the process's bell when none moves, and at idle groups ten times a second. It also runs the callbacks of what it
// completes; while one keeps it for long, a follower takes the lead (ProgressRole).
//
// One per bell, that is per process; begun with its first group and gone with its last. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/progress_role.h"
#include "backend/transport/transport.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// A group, as the thread sees it.
class Progressed {
 public:
  struct Look {
    bool moved = false;
    bool lostLead = false;  // its callbacks took long, and another thread leads by now
    Deadline nextLook{};    // when nobody rings before
  };
  virtual ~Progressed() = default;
  // Moves what can be moved without waiting. Armed for the process's bell if something is in flight.
  virtual Look lookAsLeader() = 0;
};

class ProgressThread {
 public:
  static std::shared_ptr<ProgressThread> of(std::shared_ptr<ProgressBell> bell);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  void add(const std::shared_ptr<Progressed>& group);
  // Returns when no other thread looks at it, or ever will.
  void remove(const Progressed* group);
  void ring();
  // Around callbacks on the leading thread. leaveCallbacks: false when another thread leads by now.
  void enterCallbacks(std::uint64_t* turn);
  bool leaveCallbacks(std::uint64_t turn);

 private:
  // A group in the list. The two words are seq_cst: of a thread that enters and one that removes, at least one sees the other.
  struct Entry {
    std::weak_ptr<Progressed> group;
    const Progressed* key;  // the same, to be found by
    std::atomic<bool> isRemoved{false};
    std::atomic<int> numInside{0};  // threads that look at it now
  };
  using Entries = std::vector<std::shared_ptr<Entry>>;

  // Shared with the threads, which may outlive this: a callback may have dropped the last group.
  struct State {
    std::shared_ptr<ProgressBell> bell;
    ProgressRole role;
    std::atomic<bool> stop{false};
    Mutex mutex;
    ConditionVariable changed;
    // Replaced, never changed: a thread goes through one while groups come and go.
    std::shared_ptr<const Entries> groups SW_GUARDED_BY(mutex) = std::make_shared<const Entries>();

    void follow(bool leadsFirst);
    void lead();
    bool enter(Entry& entry);
    void leave(Entry& entry);
  };

  explicit ProgressThread(std::shared_ptr<ProgressBell> bell);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  Mutex threadsMutex_;
  std::vector<std::thread> threads_ SW_GUARDED_BY(threadsMutex_);
};

}  // namespace shardwire::internal
