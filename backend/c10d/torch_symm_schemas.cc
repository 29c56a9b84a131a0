// Schemas for the symm_mem ops missing in a torch built without CUDA, before torch moved most of these ops out of the
// CUDA sources.
#include "backend/c10d/torch_symm_ops.h"

#if SW_TORCH_HAS_SYMMETRIC_MEMORY && !SW_TORCH_HAS_SYMM_BACKENDS

#include <array>
#include <string>

#include "shardwire/torch_backend.h"
// After shardwire/torch_backend.h.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace shardwire::internal {
namespace {

// Without the ops that torch's Python module defines itself: a second definition is an error there.
constexpr std::array kSchemas = {
    "one_shot_all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor",
    "one_shot_all_reduce_out(Tensor input, str reduce_op, str group_name, Tensor(a!) out) -> Tensor(a!)",
    "one_shot_all_reduce_copy(Tensor symm_buffer, Tensor local_input, str reduce_op, str group_name) -> Tensor",
    "one_shot_all_reduce_copy_out(Tensor symm_buffer, Tensor local_input, str reduce_op, str group_name, Tensor(a!) "
    "out) -> Tensor(a!)",
    "two_shot_all_reduce_(Tensor(a!) input, str reduce_op, str group_name) -> Tensor(a!)",
    "two_shot_all_reduce_out(Tensor(a!) input, str reduce_op, str group_name, Tensor(b!) output) -> Tensor(b!)",
    "multimem_all_reduce_(Tensor(a!) input, str reduce_op, str group_name) -> Tensor(a!)",
    "multimem_one_shot_all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor",
    "multimem_one_shot_all_reduce_out(Tensor input, str reduce_op, str group_name, Tensor(a!) out) -> Tensor(a!)",
    "multimem_one_shot_reduce_out(Tensor input, str reduce_op, int root, str group_name, Tensor(a!) out) -> Tensor(a!)",
    "multimem_all_gather_out(Tensor input, str group_name, Tensor(a!) out) -> Tensor(a!)",
    "reduce_scatter_out(Tensor(a!) input, str group_name, bool split_last_dim, Tensor(b!) output) -> Tensor(b!)",
    "all_to_all_vdev(Tensor input, Tensor(a!) out, Tensor in_splits, Tensor(a!) out_splits_offsets, str group_name) -> "
    "()",
    "all_to_all_vdev_2d(Tensor input, Tensor(a!) out, Tensor in_splits, Tensor(a!) out_splits_offsets, str group_name, "
    "int? major_align=None) -> ()",
    "all_to_all_vdev_2d_offset(Tensor input, Tensor(a!) out, Tensor in_splits_offsets, Tensor(a!) out_splits_offsets, "
    "str group_name) -> ()",
    "get_remote_tensors(Tensor x, str group_name) -> Tensor[]",
    "stream_write_value32_(Tensor(a!) input, int offset, int val) -> Tensor(a!)",
    "memset32_(Tensor(a!) input, int offset, int val, int count) -> Tensor(a!)",
};

// The results of a trace, as in torch 2.13.
at::Tensor likeInput(const at::Tensor& input, std::string, std::string) {
  return at::empty_like(input);
}

at::Tensor likeLocalInput(const at::Tensor&, const at::Tensor& localInput, std::string, std::string) {
  return at::empty_like(localInput);
}

}  // namespace

void defineMissingSymmOps() {
  static auto* const library =
      new torch::Library(torch::Library::FRAGMENT, "symm_mem", std::nullopt, __FILE__, __LINE__);
  static auto* const meta =
      new torch::Library(torch::Library::IMPL, "symm_mem", c10::DispatchKey::Meta, __FILE__, __LINE__);
  for (const char* const schema : kSchemas) {
    const std::string text = schema;
    const std::string name = text.substr(0, text.find('('));
    if (c10::Dispatcher::singleton().findSchema({"symm_mem::" + name, ""}).has_value()) {
      continue;
    }
    library->def(schema);
    if (name == "one_shot_all_reduce") {
      meta->impl("one_shot_all_reduce", &likeInput);
    } else if (name == "one_shot_all_reduce_copy") {
      meta->impl("one_shot_all_reduce_copy", &likeLocalInput);
    }
  }
}

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY && !SW_TORCH_HAS_SYMM_BACKENDS
