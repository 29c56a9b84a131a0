// Built instead of this folder's other files when libibverbs-dev is missing (see CMakeLists.txt).
#include "backend/transport/endpoint.h"

namespace shardwire::internal {

Result<std::unique_ptr<Endpoint>> makeRdmaEndpoint(const Self&) {
  return Status{StatusCode::kUnsupported,
                "shardwire was built on a machine without libibverbs-dev; install it and build again: ./run setup, or "
                "pip install --force-reinstall --no-deps --no-build-isolation ."};
}

}  // namespace shardwire::internal
