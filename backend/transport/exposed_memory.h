// What this rank exposed to one peer over a wire: extents of memory, each under a number that the peer names in its requests, and the one
// check that a request stays within. The numbers and addresses come from the peer and may be anything. Owned by a connection. Threads: as
// Connection.
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
  // Ok when it holds these bytes; else kPeerFailed, in words that follow "asked for ".
  Status check(std::uint64_t address, std::uint64_t numBytes) const;
};

class ExposedMemory {
 public:
  // Under a number that was not used lately, so that a late request for what is concealed finds nothing.
  RemoteAddress expose(const void* bytes, std::size_t size);
  // Nothing happens when it is concealed already.
  void conceal(std::uint32_t space) { exposures_.erase(space); }
  void concealAll() { exposures_.clear(); }
  // kPeerFailed, in words that follow "asked for ", when there is none of this number.
  Result<Exposure> find(std::uint32_t space) const;

 private:
  std::unordered_map<std::uint32_t, Exposure> exposures_;
  std::uint32_t nextSpace_ = kFirstExposure;
};

}  // namespace shardwire::internal
