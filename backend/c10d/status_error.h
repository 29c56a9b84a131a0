// The exception that carries a Status through torch's C++ code, which reports errors by throwing. Python turns it into the class of its
// code (python/csrc/errors.cc); code that knows nothing of shardwire sees a std::runtime_error with the same text.
#pragma once

#include <stdexcept>
#include <utility>

#include "shardwire/status.h"

namespace shardwire {

class __attribute__((visibility("default"))) StatusError : public std::runtime_error {
 public:
  explicit StatusError(Status status) : std::runtime_error(status.message()), status_(std::move(status)) {}
  ~StatusError() override;
  const Status& status() const { return status_; }

 private:
  Status status_;
};

namespace internal {

inline void throwUnlessOk(Status status) {
  if (!status.isOk()) {
    throw StatusError(std::move(status));
  }
}

template <typename T>
T valueOrThrow(Result<T> result) {
  throwUnlessOk(result.status());
  return std::move(result).value();
}

}  // namespace internal
}  // namespace shardwire
