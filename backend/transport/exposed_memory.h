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

// A run of exposed memory that the peer requests.
struct RemoteRun {
  std::uint64_t address;  // in this process
  std::uint64_t bytes;
  friend bool operator==(const RemoteRun&, const RemoteRun&) = default;
};

struct Exposure {
  std::uint32_t space = 0;
  std::uint64_t first = 0;  // address in this process
  std::uint64_t bytes = 0;

  bool holds(std::uint64_t address, std::uint64_t numBytes) const {
    const std::uint64_t offset = address - first;  // wraps around below `first`, past every extent
    return offset <= bytes && numBytes <= bytes - offset && address >= first;
  }
  // Ok when the exposure contains the run; else kPeerFailed, with words that follow "asked for ".
  Status check(const RemoteRun& run) const;
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
  // The check of a request: ok when the peer may read all runs; else kPeerFailed, with words that follow "asked for ".
  // runAt(i) returns run i, and is called in order up to the first run that the peer may not read.
  template <typename RunAt>
  Status check(std::uint32_t space, std::size_t numRuns, RunAt&& runAt) const {
    const Result<Exposure> exposure = find(space);
    Status may = exposure.status();
    for (std::size_t i = 0; i < numRuns && may.isOk(); ++i) {
      may = exposure->check(runAt(i));
    }
    return may;
  }

 private:
  std::unordered_map<std::uint32_t, Exposure> exposures_;
  std::uint32_t nextSpace_ = kFirstExposure;
};

}  // namespace shardwire::internal
