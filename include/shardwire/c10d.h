// shardwire for C++ programs on libtorch: make a group from a c10d store, use it as any c10d backend, compile
// operations on at::Tensors. Link shardwire::c10d. Built for one torch version. Any thread. Errors are thrown as
// shardwire::StatusError (a std::runtime_error).
//
//   auto group = shardwire::create(store, rank, worldSize);
//   auto op = shardwire::compileOp(*group, spec);
//   op->run(inputs, outputs)->wait();
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwire/communicator.h"
#include "shardwire/export.h"
#include "shardwire/offline.h"
#include "shardwire/stream_gate.h"  // setStreamGates(), for a library that adds a kind of device
#include "shardwire/tensor_op.h"
#include "shardwire/torch_backend.h"

namespace shardwire {

// Collective over the ranks that share `store`: blocks until all ranks have joined, up to `timeout`, which is also the
// default timeout of operations.
SHARDWIRE_EXPORT c10::intrusive_ptr<TorchBackend> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank,
                                                         int worldSize,
                                                         std::chrono::milliseconds timeout = std::chrono::minutes(30),
                                                         const std::string& groupName = "");

// The functions below require a group made with shardwire by create() or torch.distributed. A group of another backend
// is a kTypeError.

// Collective and blocking: every rank of the group gives its own spec. All ranks get the same error when the specs do
// not fit together.
SHARDWIRE_EXPORT std::unique_ptr<TensorOp> compileOp(TorchBackend& group, const LocalSpec& spec,
                                                     std::optional<Duration> timeout = std::nullopt);
// Collective and blocking: makes the op of planOffline() or readPlan() (shardwire/offline.h) runnable in this group.
// Each rank gives the op of that rank.
SHARDWIRE_EXPORT std::unique_ptr<TensorOp> attach(TorchBackend& group, const CompiledOp& planned,
                                                  std::optional<Duration> timeout = std::nullopt);
// The same group without torch: collectives on TensorViews. Throws kAborted after shutdown().
SHARDWIRE_EXPORT std::shared_ptr<Communicator> communicatorOf(TorchBackend& group);
// Ends the group on this rank; pending and later operations of the group fail here. The other ranks notice only when
// they need this rank. Idempotent.
SHARDWIRE_EXPORT void shutdown(TorchBackend& group);
// Fails every pending and later operation of the group on this rank at once. Idempotent.
SHARDWIRE_EXPORT void abort(TorchBackend& group);
// Fails every pending and later operation of the group on all ranks (Communicator::revoke). Idempotent.
SHARDWIRE_EXPORT void revoke(TorchBackend& group);

// The element type of a tensor, for TensorDecl::dtype.
SHARDWIRE_EXPORT DType dtypeOf(const at::Tensor& tensor);
// An uninitialised tensor in the heap shared by all ranks of this host: ranks exchange such tensors with one copy.
SHARDWIRE_EXPORT at::Tensor emptyInSharedHeap(at::IntArrayRef shape, at::ScalarType type = at::kFloat);

}  // namespace shardwire
