// The public functions of shardwire/c10d.h: each finds our group behind torch's backend and calls the group.
#include "shardwire/c10d.h"

#include "backend/c10d/heap_allocator.h"
#include "backend/c10d/process_group_shardwire.h"

namespace shardwire {

namespace {

ProcessGroupShardwire& groupOf(TorchBackend& group, const char* what) {
  auto* ours = dynamic_cast<ProcessGroupShardwire*>(&group);
  if (ours == nullptr) {
    internal::refuseCall(
        StatusCode::kTypeError,
        "{}: the group's backend is '{}'; make the group with shardwire::create() or with backend 'shardwire'", what,
        group.getBackendName());
  }
  return *ours;
}

}  // namespace

c10::intrusive_ptr<TorchBackend> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int worldSize,
                                        std::chrono::milliseconds timeout, const std::string& groupName) {
  return ProcessGroupShardwire::create(store, rank, worldSize, timeout, groupName);
}

std::unique_ptr<TensorOp> compileOp(TorchBackend& group, const LocalSpec& spec, std::optional<Duration> timeout) {
  return groupOf(group, "compileOp").compileOp(spec, timeout);
}

std::unique_ptr<TensorOp> attach(TorchBackend& group, const CompiledOp& planned, std::optional<Duration> timeout) {
  return groupOf(group, "attach").attach(planned, timeout);
}

std::shared_ptr<Communicator> communicatorOf(TorchBackend& group) {
  return groupOf(group, "communicatorOf").communicator();
}

void shutdown(TorchBackend& group) {
  groupOf(group, "shutdown").shutdown();
}

void abort(TorchBackend& group) {
  groupOf(group, "abort").abort();
}

void revoke(TorchBackend& group) {
  groupOf(group, "revoke").revoke();
}

DType dtypeOf(const at::Tensor& tensor) {
  return internal::dtypeOf(tensor.scalar_type());
}

at::Tensor emptyInSharedHeap(at::IntArrayRef shape, at::ScalarType type) {
  return internal::heapEmpty(shape, type);
}

}  // namespace shardwire
