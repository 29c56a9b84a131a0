#include "backend/exec/description.h"

#include <fmt/format.h>

namespace shardwire::internal {

std::string Description::text() const {
  if (direction_ == Direction::kNone) {
    return *text_;
  }
  const bool isSend = direction_ == Direction::kSend;
  return fmt::format("{}({}[{}], {} {}, tag {})", isSend ? "send" : "recv", dtypeName(dtype_), numElems_,
                     isSend ? "to" : "from", peer_ < 0 ? "any rank" : fmt::format("rank {}", peer_), tag_);
}

}  // namespace shardwire::internal
