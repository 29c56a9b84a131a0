// The functions of libibverbs in use, as a table. The library is loaded on first use, so that a machine without
// libibverbs still runs everything else. Tests copy the table and insert failures. Any thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "shardwire/status.h"

namespace shardwire::internal {

// Named as in verbs.h without the prefix; see the manual pages there.
struct VerbsApi {
  ibv_device** (*getDeviceList)(int* numDevices) = nullptr;
  void (*freeDeviceList)(ibv_device** list) = nullptr;
  const char* (*getDeviceName)(ibv_device* device) = nullptr;
  ibv_context* (*openDevice)(ibv_device* device) = nullptr;
  int (*closeDevice)(ibv_context* context) = nullptr;
  int (*queryDevice)(ibv_context* context, ibv_device_attr* attributes) = nullptr;
  int (*queryPort)(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes) = nullptr;
  int (*queryGidEx)(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry,
                    std::uint32_t flags, std::size_t entryBytes) = nullptr;
  ibv_pd* (*allocPd)(ibv_context* context) = nullptr;
  int (*deallocPd)(ibv_pd* pd) = nullptr;
  ibv_mr* (*regMr)(ibv_pd* pd, void* bytes, std::size_t size, int access) = nullptr;
  int (*deregMr)(ibv_mr* mr) = nullptr;
  ibv_comp_channel* (*createCompChannel)(ibv_context* context) = nullptr;
  int (*destroyCompChannel)(ibv_comp_channel* channel) = nullptr;
  ibv_cq* (*createCq)(ibv_context* context, int numEntries, void* cqContext, ibv_comp_channel* channel,
                      int vector) = nullptr;
  int (*destroyCq)(ibv_cq* cq) = nullptr;
  int (*getCqEvent)(ibv_comp_channel* channel, ibv_cq** cq, void** cqContext) = nullptr;
  void (*ackCqEvents)(ibv_cq* cq, unsigned numEvents) = nullptr;
  int (*getAsyncEvent)(ibv_context* context, ibv_async_event* event) = nullptr;
  void (*ackAsyncEvent)(ibv_async_event* event) = nullptr;
  const char* (*eventTypeStr)(ibv_event_type event) = nullptr;
  ibv_qp* (*createQp)(ibv_pd* pd, ibv_qp_init_attr* attributes) = nullptr;
  int (*modifyQp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = nullptr;
  int (*destroyQp)(ibv_qp* qp) = nullptr;
  const char* (*wcStatusStr)(ibv_wc_status status) = nullptr;
  // These four are inline in verbs.h, through the device's own table.
  int (*postSend)(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) = nullptr;
  int (*postRecv)(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) = nullptr;
  int (*pollCq)(ibv_cq* cq, int most, ibv_wc* completions) = nullptr;
  int (*reqNotifyCq)(ibv_cq* cq, int solicitedOnly) = nullptr;

  // The real table. kUnsupported, with the loader's text, where libibverbs.so.1 is missing or lacks a function.
  static Result<const VerbsApi*> load();
};

}  // namespace shardwire::internal
