// The exception that carries a Status through torch's C++ code, which reports errors by throwing. Code without
// shardwire's headers sees a std::runtime_error with the same text.
#pragma once

#include <stdexcept>
#include <utility>

#include "shardwire/export.h"
#include "shardwire/status.h"

namespace shardwire {

class SHARDWIRE_EXPORT StatusError : public std::runtime_error {
 public:
  explicit StatusError(Status status) : std::runtime_error(status.message()), status_(std::move(status)) {}
  ~StatusError() override;
  const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace shardwire
