// Stands for the whole folder where libibverbs-dev was missing when shardwire was built (see CMakeLists.txt).
#include "backend/transport/endpoint.h"

namespace shardwire::internal {

Result<std::unique_ptr<Endpoint>> makeRdmaEndpoint(const Self&) {
  return Status{StatusCode::kUnsupported,
                "shardwire was built on a machine without libibverbs-dev; install it and build again: ./run setup, or pip install "
                "--force-reinstall --no-deps "
                "--no-build-isolation ."};
}

}  // namespace shardwire::internal
