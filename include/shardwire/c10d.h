// shardwire for C++ programs on libtorch: make a group from a c10d store, use it as any c10d backend, compile operations on at::Tensors.
// Link shardwire::c10d. Built for one torch version. Errors are thrown as shardwire::StatusError (a std::runtime_error).
//
//   auto group = shardwire::create(store, rank, worldSize);
//   auto op = shardwire::compileOp(*group, spec);
//   op->run(inputs, outputs)->wait();
#pragma once

#include "backend/c10d/process_group_shardwire.h"
#include "backend/c10d/stream_gate.h"  // setStreamGates(), for who brings a kind of device

namespace shardwire {

// Collective over the ranks that share `store`: blocks until all have met, up to `timeout`, which is also the operations' default.
inline c10::intrusive_ptr<ProcessGroupShardwire> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int worldSize,
                                                        std::chrono::milliseconds timeout = std::chrono::minutes(30),
                                                        const std::string& groupName = "") {
  return ProcessGroupShardwire::create(store, rank, worldSize, timeout, groupName);
}

// Collective and blocking: every rank of the group gives its own spec, and all get the same error when these do not fit together.
inline std::unique_ptr<TensorOp> compileOp(ProcessGroupShardwire& group, const LocalSpec& spec,
                                           std::optional<Duration> timeout = std::nullopt) {
  return group.compileOp(spec, timeout);
}

// The element type of a tensor, for TensorDecl::dtype.
DType dtypeOf(const at::Tensor& tensor);
// An uninitialised tensor in the heap that all ranks of this host share: it moves between them in one copy.
at::Tensor emptyInSharedHeap(at::IntArrayRef shape, at::ScalarType type = at::kFloat);

}  // namespace shardwire
