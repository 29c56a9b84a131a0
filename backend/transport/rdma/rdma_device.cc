// openRdmaPorts() opens each device of libibverbs' list, examines the ports that the options admit (examinePort():
// state, speed, best GID), and keeps devices with at least one usable port. Then ports slower than half of the fastest
// port are dropped, and then devices without a port in use. When no port is left, the error lists the reason for each
// port.
#include "backend/transport/rdma/rdma_device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

bool isIpv4(const Gid& gid) {
  static constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.data(), kMapped, sizeof(kMapped)) == 0;
}

bool isLinkLocal(const Gid& gid) {
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

// The worth of a GID: higher is better, 0 is unusable.
int gidWorth(const ibv_gid_entry& entry) {
  Gid gid;
  std::memcpy(gid.data(), entry.gid.raw, gid.size());
  if (gid == Gid{}) {
    return 0;
  }
  const int address = isIpv4(gid) ? 3 : isLinkLocal(gid) ? 1 : 2;  // a link-local address does not cross routers
  return (entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 10 : 0) + address;
}

// Bits per lane and second times lanes, in Mbit/s.
std::uint32_t portMbps(const ibv_port_attr& port) {
  static constexpr std::pair<int, std::uint32_t> kSpeeds[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
                                                              {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
  static constexpr std::pair<int, std::uint32_t> kWidths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  std::uint32_t speed = 2500;
  std::uint32_t width = 1;
  for (const auto& [code, value] : kSpeeds) {
    speed = port.active_speed == code ? value : speed;
  }
  for (const auto& [code, value] : kWidths) {
    width = port.active_width == code ? value : width;
  }
  return speed * width;
}

const char* portStateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initialising: is a subnet manager running?";
    case IBV_PORT_ARMED:
      return "armed, not yet active";
    case IBV_PORT_ACTIVE:
      return "active";
    default:
      return "in an unknown state";
  }
}

// The port as a rail, or why it cannot be one.
Result<Rail> examinePort(const VerbsApi& api, const RdmaDevice& device, std::uint8_t number, int wantedGid) {
  ibv_port_attr port{};
  if (const int error = api.queryPort(device.context(), number, &port); error != 0) {
    return systemError("ibv_query_port", error);
  }
  if (port.state != IBV_PORT_ACTIVE) {
    return Status{StatusCode::kUnsupported, portStateName(port.state)};
  }
  Rail rail;
  rail.address.device = device.name();
  rail.address.port = number;
  rail.address.isEthernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  rail.address.lid = port.lid;
  rail.address.mtu = static_cast<std::uint8_t>(port.active_mtu);
  rail.address.mbps = portMbps(port);
  int best = 0;
  const int first = wantedGid >= 0 ? wantedGid : 0;
  // InfiniBand ports have a single GID, at index 0; the index in the options is for RoCE.
  const int end = !rail.address.isEthernet ? 1 : wantedGid >= 0 ? wantedGid + 1 : port.gid_tbl_len;
  for (int index = rail.address.isEthernet ? first : 0; index < end; ++index) {
    ibv_gid_entry entry{};
    const int error =
        api.queryGidEx(device.context(), number, static_cast<std::uint32_t>(index), &entry, 0, sizeof(entry));
    if (error == 0 && gidWorth(entry) > best) {
      best = gidWorth(entry);
      rail.gidIndex = index;
      std::memcpy(rail.address.gid.data(), entry.gid.raw, rail.address.gid.size());
    }
  }
  if (best == 0 && rail.address.isEthernet) {
    return Status{StatusCode::kUnsupported,
                  wantedGid >= 0 ? fmt::format("has no GID of index {} (SHARDWIRE_RDMA_GID_INDEX)", wantedGid)
                                 : std::string("has no GID: does its network interface have an address?")};
  }
  return rail;
}

}  // namespace

std::string toString(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool ipv4 = isIpv4(gid);
  ::inet_ntop(ipv4 ? AF_INET : AF_INET6, gid.data() + (ipv4 ? 12 : 0), text, sizeof(text));
  return text;
}

std::string toString(const RailAddress& rail) {
  return rail.isEthernet ? fmt::format("{}:{} (RoCE, {})", rail.device, rail.port, toString(rail.gid))
                         : fmt::format("{}:{} (InfiniBand, LID {})", rail.device, rail.port, rail.lid);
}

bool admitsPort(const std::string& filter, const std::string& device, int port) {
  if (filter.empty()) {
    return true;
  }
  std::string_view rest = filter;
  const bool isExcluding = rest.front() == '^';
  rest.remove_prefix(isExcluding ? 1 : 0);
  const bool isExact = !rest.empty() && rest.front() == '=';
  rest.remove_prefix(isExact ? 1 : 0);
  bool isNamed = false;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::string_view name = item.substr(0, item.find(':'));
    const std::string_view number = name.size() < item.size() ? item.substr(name.size() + 1) : std::string_view();
    const bool isDevice = isExact ? device == name : device.starts_with(name);
    isNamed = isNamed || (!name.empty() && isDevice && (number.empty() || number == std::to_string(port)));
  }
  return isNamed != isExcluding;
}

Result<std::unique_ptr<RdmaDevice>> RdmaDevice::open(const VerbsApi& api, ibv_device* device) {
  std::unique_ptr<RdmaDevice> opened(new RdmaDevice(api));
  opened->name_ = api.getDeviceName(device);
  opened->context_ = api.openDevice(device);
  if (opened->context_ == nullptr) {
    return systemError("ibv_open_device", errno);
  }
  if (const int error = api.queryDevice(opened->context_, &opened->attributes_); error != 0) {
    return systemError("ibv_query_device", error);
  }
  opened->pd_ = api.allocPd(opened->context_);
  if (opened->pd_ == nullptr) {
    return systemError("ibv_alloc_pd", errno);
  }
  return opened;
}

RdmaDevice::~RdmaDevice() {
  if (pd_ != nullptr) {
    api_.deallocPd(pd_);
  }
  if (context_ != nullptr) {
    api_.closeDevice(context_);
  }
}

Result<RdmaPorts> openRdmaPorts(const VerbsApi& api, const Options& options) {
  int numDevices = 0;
  errno = 0;
  ibv_device** list = api.getDeviceList(&numDevices);
  if (list == nullptr || numDevices == 0) {
    const std::string why = list == nullptr && errno != 0 ? fmt::format(" ({})", errnoText(errno)) : "";
    if (list != nullptr) {
      api.freeDeviceList(list);
    }
    return Status{StatusCode::kUnsupported,
                  fmt::format("this machine has no RDMA device that libibverbs can use{}", why)};
  }
  RdmaPorts found;
  std::vector<std::string> reasons;
  for (int i = 0; i < numDevices; ++i) {
    auto device = RdmaDevice::open(api, list[i]);
    if (!device.isOk()) {
      reasons.push_back(fmt::format("{}: {}", api.getDeviceName(list[i]), device.status().message()));
      continue;
    }
    bool isUsed = false;
    for (std::uint8_t port = 1; port <= (*device)->attributes().phys_port_cnt; ++port) {
      if (!admitsPort(options.rdmaDevices, (*device)->name(), port)) {
        reasons.push_back(
            fmt::format("{}:{}: excluded by SHARDWIRE_RDMA_DEVICES={}", (*device)->name(), port, options.rdmaDevices));
        continue;
      }
      auto rail = examinePort(api, **device, port, options.rdmaGidIndex);
      if (rail.isOk()) {
        rail->device = found.devices.size();
        found.rails.push_back(std::move(*rail));
        isUsed = true;
      } else {
        reasons.push_back(fmt::format("{}:{}: {}", (*device)->name(), port, rail.status().message()));
      }
    }
    if (isUsed) {
      found.devices.push_back(std::move(*device));
    }
  }
  api.freeDeviceList(list);
  if (found.rails.empty()) {
    return Status{StatusCode::kUnsupported, fmt::format("no RDMA port can be used: {}", fmt::join(reasons, "; "))};
  }
  // A slow port would delay payload that is striped over slow and fast ports.
  std::uint32_t fastest = 0;
  for (const Rail& rail : found.rails) {
    fastest = std::max(fastest, rail.address.mbps);
  }
  std::erase_if(found.rails, [&](const Rail& rail) { return rail.address.mbps * 2 < fastest; });
  found.rails.resize(std::min(found.rails.size(), kMaxRails));
  // The rails are in the order of the devices, and a device may have several. A device without a rail would cost a
  // completion queue and a registration of all memory, and arrays by device have kMaxRails places.
  RdmaPorts used;
  for (Rail& rail : found.rails) {
    if (auto& device = found.devices[rail.device]; device != nullptr) {
      used.devices.push_back(std::move(device));
    }
    rail.device = used.devices.size() - 1;
  }
  used.rails = std::move(found.rails);
  return used;
}

}  // namespace shardwire::internal
