#include <fmt/format.h>

#include "backend/transport/transport.h"

namespace shardwire::internal {

Result<std::shared_ptr<HeldMemory>> Connection::hold(const HeapPlace&, std::size_t) {
  return Status{
      StatusCode::kUnsupported,
      fmt::format(
          "rank {} is reached by {}: its memory cannot be addressed from this rank, only that of ranks joined by "
          "shared memory on one host can",
          peer(), transportName())};
}

}  // namespace shardwire::internal
