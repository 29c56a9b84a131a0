#include "backend/base/host_name.h"

#include <unistd.h>

#include <array>

namespace shardwire::internal {

std::string hostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace shardwire::internal
