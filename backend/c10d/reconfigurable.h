// The parts of a ProcessGroupShardwire whose members change: included by its source files only.
#pragma once

#include <memory>
#include <string>

#include "backend/base/mutex.h"
#include "backend/c10d/membership.h"
#include "backend/c10d/process_group_shardwire.h"

namespace shardwire {

// The communicator of the present members, for devices: when a device refuses a copy, no rank can go on, and the group
// is aborted. Any thread.
class ProcessGroupShardwire::Present {
 public:
  void set(const std::shared_ptr<Communicator>& communicator) {
    const internal::MutexLock lock(mutex_);
    communicator_ = communicator;
  }
  void abort(const std::string& reason) {
    std::shared_ptr<Communicator> alive;
    {
      const internal::MutexLock lock(mutex_);
      alive = communicator_.lock();
    }
    if (alive != nullptr) {
      alive->abort(reason);
    }
  }

 private:
  internal::Mutex mutex_;
  std::weak_ptr<Communicator> communicator_ SW_GUARDED_BY(mutex_);
};

// Of a group made with enable_reconfigure. The group's lock guards `timeout` and `isShutDown`.
struct ProcessGroupShardwire::Reconfigurable {
  const std::shared_ptr<internal::Membership> membership;
  const std::string name;
  Milliseconds timeout;  // of operations, for the communicators to come
  bool isShutDown = false;
};

}  // namespace shardwire
