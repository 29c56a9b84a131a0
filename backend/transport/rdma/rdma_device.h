// The RDMA devices of this rank, and the ports in use ("rails"): opened, checked, each with the address for peers.
// Owned by the fabric. Threads: see Connection.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/transport/rdma/verbs_api.h"
#include "shardwire/options.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// The most ports that one rank uses, and the most payload queue pairs between two ranks.
inline constexpr std::size_t kMaxRails = 4;

using Gid = std::array<std::uint8_t, 16>;
// "10.0.0.1" or "fe80::1".
std::string toString(const Gid& gid);

// The published address of a port.
struct RailAddress {
  std::string device;  // "mlx5_0", for messages
  std::uint8_t port = 1;
  bool isEthernet = false;  // RoCE, addressed by gid; else InfiniBand, addressed by lid, and by gid in another subnet
  std::uint16_t lid = 0;
  Gid gid{};
  std::uint8_t mtu = 0;  // ibv_mtu
  std::uint32_t mbps = 0;
  friend bool operator==(const RailAddress&, const RailAddress&) = default;
};
// "mlx5_0:1 (RoCE, 10.0.0.1)"
std::string toString(const RailAddress& rail);

// An open device with its protection domain.
class RdmaDevice {
 public:
  static Result<std::unique_ptr<RdmaDevice>> open(const VerbsApi& api, ibv_device* device);
  ~RdmaDevice();
  RdmaDevice(const RdmaDevice&) = delete;
  RdmaDevice& operator=(const RdmaDevice&) = delete;

  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  const std::string& name() const { return name_; }
  const ibv_device_attr& attributes() const { return attributes_; }

 private:
  explicit RdmaDevice(const VerbsApi& api) : api_(api) {}

  const VerbsApi& api_;
  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_device_attr attributes_{};
};

// A port that this rank uses.
struct Rail {
  std::size_t device = 0;  // index in RdmaPorts::devices
  int gidIndex = 0;
  RailAddress address;
};

struct RdmaPorts {
  std::vector<std::unique_ptr<RdmaDevice>> devices;  // each has at least one of the rails
  std::vector<Rail> rails;                           // at least one, at most kMaxRails
};

// Opens the devices that options.rdmaDevices admits, and chooses the fastest of the active ports, in the system's
// order. kUnsupported lists every port, each with the reason against using the port.
Result<RdmaPorts> openRdmaPorts(const VerbsApi& api, const Options& options);

// Whether a filter in the form of options.rdmaDevices admits this port. "mlx5" admits all names with this prefix,
// "=mlx5_1:1" admits exactly this port, "^mlx5_3" admits all ports except names with this prefix.
bool admitsPort(const std::string& filter, const std::string& device, int port);

}  // namespace shardwire::internal
