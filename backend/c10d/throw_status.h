// How our torch code throws: a StatusError, or for an interrupted wait the exception that Python's signal check found.
// Python turns a StatusError into the class of its code (python/csrc/errors.cc). The kernels of torch.ops are an
// exception: torch 2.15 calls no exception translator there, so the kernels throw Python's exception. Any thread.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "shardwire/export.h"
#include "shardwire/status_error.h"

namespace shardwire::internal {

// Throws a Python exception for the status; for kInterrupted the exception that the signal check found, if there is
// one. May return; then a StatusError is thrown. Null: there is no Python.
using PythonThrower = void (*)(const Status&);
SHARDWIRE_EXPORT void setPythonThrower(PythonThrower thrower);

// Throws a StatusError; for kInterrupted the thrower's exception, if there is one, instead.
[[noreturn]] SHARDWIRE_EXPORT void throwStatus(Status status);

// Throws a StatusError with a text in the form of fmt.
template <typename... Args>
[[noreturn]] void refuseCall(StatusCode code, fmt::format_string<Args...> text, Args&&... args) {
  throw StatusError(Status(code, fmt::format(text, std::forward<Args>(args)...)));
}

// In a handler of `error`: throws Python's exception for `error`, or `error` again where there is no Python.
[[noreturn]] void rethrowToPython(const StatusError& error);

// The function of a kernel that torch.ops calls.
template <auto function>
struct KernelForPython;
template <typename Returned, typename... Args, Returned (*function)(Args...)>
struct KernelForPython<function> {
  static Returned call(Args... args) {
    try {
      return function(std::forward<Args>(args)...);
    } catch (const StatusError& error) {
      rethrowToPython(error);
    }
  }
};

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
