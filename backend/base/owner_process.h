// The process that owns an object, for use after a fork: an object with threads, or with memory that other processes
// see, stays the parent's. Made where the object is made; isHere() costs one relaxed load. Any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "shardwire/export.h"
#include "shardwire/status.h"

namespace shardwire::internal {

class SHARDWIRE_EXPORT OwnerProcess {
 public:
  // This process.
  OwnerProcess();

  // False in a child that inherited the object by fork().
  bool isHere() const { return generation_ == current_.load(std::memory_order_relaxed); }
  pid_t pid() const { return pid_; }
  // Ok in the owner; elsewhere kUnsupported: "`what` belongs to process 12; process 34 is a fork of it and ...".
  Status check(std::string_view what) const;

 private:
  static std::atomic<std::uint32_t>
      current_;  // number of forks on the way to this process; changed only while a child has one thread

  std::uint32_t generation_;
  pid_t pid_;
};

}  // namespace shardwire::internal
