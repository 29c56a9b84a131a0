#include "backend/transport/rdma/verbs_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace shardwire::internal {
namespace {

// The library stays loaded, since some of the drivers that libibverbs loads cannot be unloaded safely.
class Loader {
 public:
  explicit Loader(void* library) : library_(library) {}

  template <typename Function>
  void find(Function** function, const char* name, const char* version = "IBVERBS_1.1") {
    void* found =
        ::dlvsym(library_, name, version);  // some functions have an older version with another layout of structures
    if (found == nullptr) {
      found = ::dlsym(library_, name);
    }
    if (found == nullptr && missing_ == nullptr) {
      missing_ = name;
    }
    *function = reinterpret_cast<Function*>(found);
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

Result<VerbsApi> loadOnce() {
  void* library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* said = ::dlerror();
    return Status{StatusCode::kUnsupported,
                  fmt::format("libibverbs cannot be loaded ({}): install libibverbs1 and ibverbs-providers",
                              said != nullptr ? said : "the loader does not say why")};
  }
  VerbsApi api;
  Loader loader(library);
  loader.find(&api.getDeviceList, "ibv_get_device_list");
  loader.find(&api.freeDeviceList, "ibv_free_device_list");
  loader.find(&api.getDeviceName, "ibv_get_device_name");
  loader.find(&api.openDevice, "ibv_open_device");
  loader.find(&api.closeDevice, "ibv_close_device");
  loader.find(&api.queryDevice, "ibv_query_device");
  loader.find(&api.queryPort, "ibv_query_port");
  loader.find(&api.queryGidEx, "_ibv_query_gid_ex", "IBVERBS_1.11");
  loader.find(&api.allocPd, "ibv_alloc_pd");
  loader.find(&api.deallocPd, "ibv_dealloc_pd");
  loader.find(&api.regMr, "ibv_reg_mr");
  loader.find(&api.deregMr, "ibv_dereg_mr");
  loader.find(&api.createCompChannel, "ibv_create_comp_channel", "IBVERBS_1.0");
  loader.find(&api.destroyCompChannel, "ibv_destroy_comp_channel", "IBVERBS_1.0");
  loader.find(&api.createCq, "ibv_create_cq");
  loader.find(&api.destroyCq, "ibv_destroy_cq");
  loader.find(&api.getCqEvent, "ibv_get_cq_event");
  loader.find(&api.ackCqEvents, "ibv_ack_cq_events");
  loader.find(&api.getAsyncEvent, "ibv_get_async_event");
  loader.find(&api.ackAsyncEvent, "ibv_ack_async_event");
  loader.find(&api.eventTypeStr, "ibv_event_type_str");
  loader.find(&api.createQp, "ibv_create_qp");
  loader.find(&api.modifyQp, "ibv_modify_qp");
  loader.find(&api.destroyQp, "ibv_destroy_qp");
  loader.find(&api.wcStatusStr, "ibv_wc_status_str");
  int (*forkInit)() = nullptr;
  loader.find(&forkInit, "ibv_fork_init");
  if (loader.missing() != nullptr) {
    return Status{
        StatusCode::kUnsupported,
        fmt::format("libibverbs.so.1 has no {}: it is older than rdma-core 32, which is needed", loader.missing())};
  }
  api.postSend = [](ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) { return ::ibv_post_send(qp, first, bad); };
  api.postRecv = [](ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) { return ::ibv_post_recv(qp, first, bad); };
  api.pollCq = [](ibv_cq* cq, int most, ibv_wc* completions) { return ::ibv_poll_cq(cq, most, completions); };
  api.reqNotifyCq = [](ibv_cq* cq, int solicitedOnly) { return ::ibv_req_notify_cq(cq, solicitedOnly); };
  // Data loaders fork. Before Linux 5.12, ibv_fork_init() keeps registered pages from children. Since Linux 5.12
  // registered memory survives fork() without help, and the call does nothing.
  forkInit();
  return api;
}

}  // namespace

Result<const VerbsApi*> VerbsApi::load() {
  static const Result<VerbsApi> loaded = loadOnce();  // process-wide, as the library is
  SW_RETURN_IF_ERROR(loaded.status());
  return &loaded.value();
}

}  // namespace shardwire::internal
