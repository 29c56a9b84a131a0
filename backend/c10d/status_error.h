// How our torch code throws: a StatusError, or for an interrupted wait the exception that Python's signal check found.
// Python turns a StatusError into the class of its code (python/csrc/errors.cc). Any thread.
#pragma once

#include <utility>

#include "shardwire/status_error.h"

namespace shardwire::internal {

// Throws, for kInterrupted, the exception to throw in place of a StatusError (Python: the KeyboardInterrupt that the
// signal check found), if there is one; null: nothing.
using InterruptThrower = void (*)();
void setInterruptThrower(InterruptThrower thrower);

// Throws a StatusError; for kInterrupted the thrower's exception, if there is one, instead.
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
