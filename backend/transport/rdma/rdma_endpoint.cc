#include "backend/transport/rdma/rdma_endpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include "backend/transport/rdma/rdma_address.h"
#include "backend/transport/rdma/rdma_handshake.h"

namespace shardwire::internal {
namespace {

class RdmaEndpoint final : public Endpoint {
 public:
  RdmaEndpoint(const Self& self, std::shared_ptr<RdmaFabric> fabric) : self_(self), fabric_(std::move(fabric)) {
    for (const Rail& rail : fabric_->rails()) {
      own_.push_back(rail.address);
    }
  }

  std::string address() const override { return encodeRailAddresses(own_); }

  std::string whyNot(std::string_view peerAddress) const override {
    const auto theirs = decodeRailAddresses(peerAddress);
    return theirs.isOk() ? whyNoPair(own_, *theirs) : "one of them " + theirs.status().message();
  }

  bool mayJoinLate() const override { return true; }
  std::unique_ptr<Joining> begin(Link link, Rank peer, bool isDialer, std::string_view peerAddress,
                                 const std::string& who) override {
    return joinByRdma({fabric_, self_.options, self_.rank, peer, isDialer, who, own_, std::string(peerAddress)},
                      std::move(link));
  }

  void refuse(Link link, const Status& why) override { refuseByRdma(std::move(link), why); }
  std::unique_ptr<Wire> takeWire() override { return std::make_unique<RdmaWire>(fabric_); }

 private:
  const Self self_;
  std::shared_ptr<RdmaFabric> fabric_;
  std::vector<RailAddress> own_;
};

}  // namespace

Result<std::unique_ptr<Endpoint>> makeRdmaEndpoint(const Self& self, const VerbsApi& api) {
  auto fabric = RdmaFabric::create(api, *self.options, self.worldSize, self.storages);
  SW_RETURN_IF_ERROR(fabric.status());
  return std::unique_ptr<Endpoint>(std::make_unique<RdmaEndpoint>(self, std::move(*fabric)));
}

Result<std::unique_ptr<Endpoint>> makeRdmaEndpoint(const Self& self) {
  // Loading libibverbs takes 2 ms, and most machines have no RDMA device. Without /sys, only libibverbs can find
  // devices.
  const auto exists = [](const char* path) { return ::access(path, F_OK) == 0; };
  if (exists("/sys/class") && !exists("/sys/class/infiniband") && !exists("/sys/class/infiniband_verbs")) {
    return Status{StatusCode::kUnsupported, "this machine has no RDMA device (there is no /sys/class/infiniband)"};
  }
  const auto api = VerbsApi::load();
  SW_RETURN_IF_ERROR(api.status());
  return makeRdmaEndpoint(self, **api);
}

}  // namespace shardwire::internal
