#include "backend/transport/exposed_memory.h"

#include <fmt/format.h>

namespace shardwire::internal {

Status Exposure::check(const RemoteRun& run) const {
  if (holds(run.address, run.bytes)) {
    return Status::ok();
  }
  return {StatusCode::kPeerFailed, fmt::format("{} bytes at {:#x} of exposure {}, which is {} bytes at {:#x}",
                                               run.bytes, run.address, space, bytes, first)};
}

RemoteAddress ExposedMemory::expose(const void* bytes, std::size_t size) {
  while (nextSpace_ < kFirstExposure || exposures_.contains(nextSpace_)) {
    ++nextSpace_;  // after 2^32 exposures
  }
  const Exposure exposure{nextSpace_++, reinterpret_cast<std::uint64_t>(bytes), size};
  exposures_.emplace(exposure.space, exposure);
  return {exposure.space, exposure.first};
}

Result<Exposure> ExposedMemory::find(std::uint32_t space) const {
  const auto found = exposures_.find(space);
  if (found == exposures_.end()) {
    return Status{StatusCode::kPeerFailed, fmt::format("bytes of exposure {}, which there is not or no longer", space)};
  }
  return found->second;
}

}  // namespace shardwire::internal
