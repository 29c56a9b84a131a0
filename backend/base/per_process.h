// A registry of this process: one T, made at first use and never destroyed, since registered objects may outlive static
// destructors. A child of fork() begins with a new T: the inherited T belongs to the parent, and its lock may be held
// by a thread that the child lacks. Any thread. There is one object for each T, so each registry has its own type.
#pragma once

#include <atomic>

#include "backend/base/owner_process.h"

namespace shardwire::internal {

template <typename T>
class PerProcess {
 public:
  static T& get() {
    Owned* known = current_.load(std::memory_order_acquire);
    if (known != nullptr && known->owner.isHere()) {
      return known->value;
    }
    auto* const fresh = new Owned;
    if (current_.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) {
      return fresh->value;
    }
    delete fresh;  // another thread of this process was first; `known` is that thread's T
    return known->value;
  }

 private:
  struct Owned {
    const OwnerProcess owner;
    T value;
  };
  static inline std::atomic<Owned*> current_{nullptr};
};

}  // namespace shardwire::internal
