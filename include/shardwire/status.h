// Errors as values. Errors caused by a user, a peer or the system are a Status or a Result; SW_CHECK is for broken
// invariants of our own. Any thread; copyable.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "shardwire/export.h"

namespace shardwire {

enum class StatusCode : unsigned char {
  kOk = 0,
  kInvalidArgument = 1,  // a wrong value: Python ValueError
  kTypeError = 2,        // a wrong kind of thing: Python TypeError
  kTimeout = 3,          // ranks did not arrive in time: Python TimeoutError
  kPeerFailed = 4,       // a peer died or left
  kMismatch = 5,         // ranks call different operations or arguments (desync)
  kAborted = 6,          // the group was aborted here or shut down
  kSystem = 7,           // the operating system refused (errno in the text)
  kUnsupported = 8,      // this build, machine or version cannot do the request
  kInternal = 9,         // a bug of ours
  kInterrupted = 10,  // a signal ended the wait (shardwire/interrupt.h): Python KeyboardInterrupt. Never sent to peers
  kGap = 11,          // no input covers part of an output: Python GapError. Every rank detects the gap alone
  kCheckpoint = 12,   // a file of weights is wrong: Python CheckpointError
  kKernel = 13,       // a kernel cannot be traced, compiled or loaded: Python KernelError
  kOther = 14,        // any other exception of a rank's Python code: Python ShardwireError
};
inline constexpr int kNumStatusCodes = 15;
SHARDWIRE_EXPORT std::string_view statusCodeName(StatusCode code);

class [[nodiscard]] SHARDWIRE_EXPORT Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status ok() { return {}; }

  bool isOk() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A T, or the Status (never ok) with the reason for having no T.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit, so `return value;` works
  Result(Status status) : value_(std::move(status)) {}  // NOLINT: implicit, so `return status;` works

  bool isOk() const { return value_.index() == 0; }
  // Ok when isOk().
  Status status() const { return isOk() ? Status::ok() : std::get<1>(value_); }
  T& value() & { return std::get<0>(value_); }
  const T& value() const& { return std::get<0>(value_); }
  T&& value() && { return std::get<0>(std::move(value_)); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> value_;
};

// Throws std::logic_error naming the place: only for our own bugs.
[[noreturn]] SHARDWIRE_EXPORT void checkFailed(const char* condition, const char* file, int line);

}  // namespace shardwire

#define SW_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::shardwire::checkFailed(#condition, __FILE__, __LINE__))
// Returns the Status of `expression` from the enclosing function when it is not ok.
#define SW_RETURN_IF_ERROR(expression)                      \
  do {                                                      \
    if (auto swStatus_ = (expression); !swStatus_.isOk()) { \
      return swStatus_;                                     \
    }                                                       \
  } while (false)
