// The memory exposed by this rank to one peer over a wire: extents, each under a number for the peer's requests, and
// the check of a request against the extent. The numbers and addresses come from the peer and may have any value. Owned
// by a connection. Threads: as Connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "backend/transport/transport.h"
#include "shardwire/status.h"

namespace shardwire::internal {

struct Exposure {
  std::uint32_t space = 0;
  std::uint64_t first = 0;  // address in this process
  std::uint64_t bytes = 0;

  bool holds(std::uint64_t address, std::uint64_t numBytes) const {
    const std::uint64_t offset = address - first;  // wraps around below `first`, past every extent
    return offset <= bytes && numBytes <= bytes - offset && address >= first;
  }
  // Ok when the exposure contains these bytes; else kPeerFailed, with words that follow "asked for ".
  Status check(std::uint64_t address, std::uint64_t numBytes) const;
};

class ExposedMemory {
 public:
  // Exposes the bytes under a number not used lately, so a late request for concealed memory finds nothing.
  RemoteAddress expose(const void* bytes, std::size_t size);
  // Does nothing when the memory is concealed already.
  void conceal(std::uint32_t space) { exposures_.erase(space); }
  void concealAll() { exposures_.clear(); }
  // kPeerFailed, with words that follow "asked for ", when there is no exposure of this number.
  Result<Exposure> find(std::uint32_t space) const;

 private:
  std::unordered_map<std::uint32_t, Exposure> exposures_;
  std::uint32_t nextSpace_ = kFirstExposure;
};

}  // namespace shardwire::internal
