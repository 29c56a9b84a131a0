// A table of verbs without devices: each call succeeds, is counted, or fails as a test wants. Used for the steps before
// a byte travels, and for errors that a real device does not make on demand.
#pragma once

#include <errno.h>

#include <cstring>
#include <deque>
#include <string>

#include "backend/transport/rdma/verbs_api.h"

namespace shardwire::testing {

// The table holds plain functions, so their state is one for the whole test program. Main thread only.
struct FakeVerbs {
  struct Port {
    ibv_port_state state = IBV_PORT_ACTIVE;
    std::uint8_t linkLayer = IBV_LINK_LAYER_ETHERNET;
    std::uint8_t speed = 32;  // EDR
    std::uint16_t lid = 0;
    std::deque<ibv_gid_entry> gids;
  };
  struct Device {
    std::string name;
    std::deque<Port> ports;
    ibv_context context{};
  };

  std::deque<Device> devices;
  int numRegistered = 0;      // existing regions
  int numRegistering = 0;     // successful regMr calls
  int failRegistrations = 0;  // so many calls fail from now on, with this errno
  int registrationError = ENOMEM;
  std::size_t lastSize = 0;
  int lastAccess = 0;

  static FakeVerbs& instance() {
    static FakeVerbs fake;
    return fake;
  }
  // Starts afresh.
  static FakeVerbs& reset() { return instance() = FakeVerbs(); }

  Port& addPort(const std::string& name) {
    Device* device = nullptr;
    for (Device& known : devices) {
      device = known.name == name ? &known : device;
    }
    if (device == nullptr) {
      device = &devices.emplace_back();
      device->name = name;
    }
    return device->ports.emplace_back();
  }
  static ibv_gid_entry ipv4Gid(std::uint8_t lastByte, std::uint32_t type = IBV_GID_TYPE_ROCE_V2) {
    ibv_gid_entry entry{};
    const std::uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, lastByte};
    std::memcpy(entry.gid.raw, bytes, sizeof(bytes));
    entry.gid_type = type;
    return entry;
  }
  static ibv_gid_entry linkLocalGid(std::uint8_t lastByte) {
    ibv_gid_entry entry{};
    entry.gid.raw[0] = 0xfe;
    entry.gid.raw[1] = 0x80;
    entry.gid.raw[15] = lastByte;
    entry.gid_type = IBV_GID_TYPE_ROCE_V2;
    return entry;
  }

  static internal::VerbsApi api();
};

inline internal::VerbsApi FakeVerbs::api() {
  using internal::VerbsApi;
  VerbsApi api;
  // The list's entries stand for the devices: only this table looks into the entries.
  api.getDeviceList = [](int* numDevices) {
    auto& devices = instance().devices;
    *numDevices = static_cast<int>(devices.size());
    auto** list = new ibv_device*[devices.size() + 1];
    for (std::size_t i = 0; i < devices.size(); ++i) {
      list[i] = reinterpret_cast<ibv_device*>(&devices[i]);
    }
    return list;
  };
  api.freeDeviceList = [](ibv_device** list) { delete[] list; };
  api.getDeviceName = [](ibv_device* device) { return reinterpret_cast<Device*>(device)->name.c_str(); };
  api.openDevice = [](ibv_device* device) {
    auto* opened = reinterpret_cast<Device*>(device);
    opened->context.device = device;
    return &opened->context;
  };
  api.closeDevice = [](ibv_context*) { return 0; };
  api.queryDevice = [](ibv_context* context, ibv_device_attr* attributes) {
    *attributes = {};
    attributes->phys_port_cnt = static_cast<std::uint8_t>(reinterpret_cast<Device*>(context->device)->ports.size());
    return 0;
  };
  api.queryPort = [](ibv_context* context, std::uint8_t number, ibv_port_attr* attributes) {
    const Port& port = reinterpret_cast<Device*>(context->device)->ports[number - 1U];
    *attributes = {};
    attributes->state = port.state;
    attributes->link_layer = port.linkLayer;
    attributes->active_speed = port.speed;
    attributes->active_width = 2;
    attributes->lid = port.lid;
    attributes->active_mtu = IBV_MTU_4096;
    attributes->gid_tbl_len = static_cast<int>(port.gids.size());
    return 0;
  };
  api.queryGidEx = [](ibv_context* context, std::uint32_t number, std::uint32_t index, ibv_gid_entry* entry,
                      std::uint32_t, std::size_t) {
    const Port& port = reinterpret_cast<Device*>(context->device)->ports[number - 1U];
    if (index >= port.gids.size()) {
      return ENODATA;
    }
    *entry = port.gids[index];
    return 0;
  };
  api.allocPd = [](ibv_context* context) { return new ibv_pd{context, 0}; };
  api.deallocPd = [](ibv_pd* pd) {
    delete pd;
    return 0;
  };
  api.regMr = [](ibv_pd* pd, void* bytes, std::size_t size, int access) -> ibv_mr* {
    FakeVerbs& fake = instance();
    if (fake.failRegistrations > 0) {
      --fake.failRegistrations;
      errno = fake.registrationError;
      return nullptr;
    }
    ++fake.numRegistered;
    ++fake.numRegistering;
    fake.lastSize = size;
    fake.lastAccess = access;
    return new ibv_mr{
        .context = pd->context, .pd = pd, .addr = bytes, .length = size, .handle = 0, .lkey = 1, .rkey = 2};
  };
  api.deregMr = [](ibv_mr* mr) {
    --instance().numRegistered;
    delete mr;
    return 0;
  };
  return api;
}

}  // namespace shardwire::testing
