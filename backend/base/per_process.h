// A registry of this process: one T, made when it is first asked for and never destroyed, since what is registered may outlive static
// destructors. A child of fork() begins with a T of its own: what it inherited is its parent's, and a thread that the child lacks may have
// held its lock. Any thread. Declare it as a static of the function that hands it out.
#pragma once

#include <atomic>

#include "backend/base/owner_process.h"

namespace shardwire::internal {

template <typename T>
class PerProcess {
 public:
  PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  T& get() {
    Owned* known = current_.load(std::memory_order_acquire);
    if (known != nullptr && known->owner.isHere()) {
      return known->value;
    }
    auto* const fresh = new Owned;
    if (current_.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) {
      return fresh->value;
    }
    delete fresh;  // another thread of this process was first, and `known` is its
    return known->value;
  }

 private:
  struct Owned {
    const OwnerProcess owner;
    T value;
  };
  std::atomic<Owned*> current_{nullptr};
};

}  // namespace shardwire::internal
