// Errors as values. Errors caused by a user, a peer or the system are a Status or a Result; SW_CHECK is for broken
// invariants of our own. Any thread; copyable.
#pragma once

#include <memory>
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

// One word, which is null when ok: nearly every call returns a Status, and nearly every Status is ok.
class [[nodiscard]] SHARDWIRE_EXPORT Status {
 public:
  Status() = default;
  // Ok, without the message, for kOk.
  Status(StatusCode code, std::string message)
      : error_(code == StatusCode::kOk ? nullptr : new Error{code, std::move(message)}) {}
  Status(const Status& other) : error_(other.isOk() ? nullptr : new Error(*other.error_)) {}
  Status(Status&&) noexcept = default;
  Status& operator=(const Status& other) { return *this = Status(other); }
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;
  static Status ok() { return {}; }

  bool isOk() const { return error_ == nullptr; }
  StatusCode code() const { return isOk() ? StatusCode::kOk : error_->code; }
  const std::string& message() const { return isOk() ? noMessage() : error_->message; }
  friend bool operator==(const Status& a, const Status& b) {
    return a.code() == b.code() && a.message() == b.message();
  }

 private:
  struct Error {
    StatusCode code;
    std::string message;
  };
  static const std::string& noMessage();

  std::unique_ptr<const Error> error_;
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
