// How our torch code throws: a StatusError, or for an interrupted wait what Python's signal check found. Python turns a StatusError into
// the class of its code (python/csrc/errors.cc). Any thread.
#pragma once

#include <utility>

#include "shardwire/status_error.h"

namespace shardwire::internal {

// Throws for kInterrupted what `thrower` throws (Python: the KeyboardInterrupt that its check found), if that is anything; null: nothing.
using InterruptThrower = void (*)();
void setInterruptThrower(InterruptThrower thrower);

// A StatusError, or in place of an interrupted one what the thrower throws.
[[noreturn]] void throwStatus(Status status);

inline void throwUnlessOk(Status status) {
  if (!status.isOk()) {
    throwStatus(std::move(status));
  }
}

template <typename T>
T valueOrThrow(Result<T> result) {
  throwUnlessOk(result.status());
  return std::move(result).value();
}

}  // namespace shardwire::internal
