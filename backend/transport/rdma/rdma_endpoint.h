// RDMA as one of the transports of a rank: see Endpoint. Threads: one at a time.
#pragma once

#include <memory>
#include <vector>

#include "backend/transport/endpoint.h"
#include "backend/transport/rdma/rdma_fabric.h"

namespace shardwire::internal {

// makeRdmaEndpoint() with another table of functions, for tests. `api` outlives the endpoint and all its connections.
Result<std::unique_ptr<Endpoint>> makeRdmaEndpoint(const Self& self, const VerbsApi& api);

// The wire of a rank's RDMA connections.
class RdmaWire final : public Wire {
 public:
  explicit RdmaWire(std::shared_ptr<RdmaFabric> fabric) : fabric_(std::move(fabric)) {}

  bool poll() override { return fabric_->poll(); }
  int readinessFd() const override { return fabric_->readinessFd(); }
  void prepareToSleep() override { fabric_->prepareToSleep(); }
  std::uint64_t pin(const void* bytes, std::size_t size, bool isWritten, const void* storage) override {
    const auto pinned = fabric_->registrations().pin(bytes, size, isWritten, storage);
    return pinned.isOk() ? reinterpret_cast<std::uintptr_t>(*pinned) : 0;
  }
  void unpin(std::uint64_t pin) override {
    if (pin != 0) {
      fabric_->registrations().unpin(reinterpret_cast<Registration*>(static_cast<std::uintptr_t>(pin)));
    }
  }
  std::uint64_t numRegistered() const { return fabric_->registrations().numRegistered(); }

 private:
  std::shared_ptr<RdmaFabric> fabric_;
};

}  // namespace shardwire::internal
