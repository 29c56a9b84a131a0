// The tensors of a call are sorted by address. Each tensor is compared with earlier tensors whose range still goes on
// where the tensor begins. Two tensors with shared memory are refused if the sharing would give wrong values. A tensor
// that occurs twice in a list of tensors to change in place is one tensor: findRepeated() returns the first place.
#include "backend/c10d/tensor_list_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "backend/c10d/tensor_adapter.h"
#include "backend/c10d/throw_status.h"
#include "backend/communicator/flat_tensor.h"
#include "backend/communicator/list_memory.h"
#include "ops/boxes/view_overlap.h"

namespace shardwire::internal {

namespace {

// Calls visit(i, j), i < j, for tensors of one device whose views share memory.
template <typename Visit>
void forEachPair(std::span<const at::Tensor* const> tensors, Visit&& visit) {
  std::vector<TensorView> views;
  for (const at::Tensor* tensor : tensors) {
    views.push_back(deviceViewOf(*tensor));
  }
  const auto viewOf = [&](std::size_t i) -> const TensorView& { return views[i]; };
  visitMeetings(views.size(), viewOf, [&](std::size_t a, std::size_t b) {
    // Addresses of two devices, or of a device and the host, are unrelated.
    if (tensors[a]->device() == tensors[b]->device() && shareMemory(views[a], views[b])) {
      visit(a, b);
    }
    return false;
  });
}

}  // namespace

std::string ListMemory::nameOf(const Use& use) {
  const auto bracket = [](std::size_t index) { return index == kNone ? std::string() : fmt::format("[{}]", index); };
  return use.list + bracket(use.index) + bracket(use.inner);
}

void ListMemory::refuse() {
  std::vector<const at::Tensor*> tensors;
  for (const Use& use : uses_) {
    tensors.push_back(use.tensor);
    if (const Status found = FlatTensors::checkUse(deviceViewOf(*use.tensor), use.written); !found.isOk()) {
      refuseCall(found.code(), "{}: {}: {}", call_, nameOf(use), found.message());
    }
  }
  forEachPair(tensors, [&](std::size_t i, std::size_t j) {
    const Use& a = uses_[i];
    const Use& b = uses_[j];
    if (a.written && b.written) {
      refuseCall(StatusCode::kInvalidArgument,
                 "{}: {} and {} share memory, and the operation writes both; give each output memory of its own", call_,
                 nameOf(a), nameOf(b));
    }
    if (a.written != b.written && a.operation != b.operation) {
      refuseCall(StatusCode::kInvalidArgument,
                 "{}: {} and {} share memory, and the operation would write there before it has read everything; give "
                 "the output memory of its own, or pass a clone of the input",
                 call_, nameOf(a), nameOf(b));
    }
  });
}

void refuseSharedWithin(const ListNames& names, std::size_t index, Rank rank, std::span<const TensorView> inputs,
                        std::span<const TensorView> outputs) {
  if (const Status found = checkListMemory(names, rank, inputs, outputs); !found.isOk()) {
    refuseCall(found.code(), "{} (tensor {} of the call's lists)", found.message(), index);
  }
}

void refuseSharedOutputs(const char* call, std::span<const at::Tensor> outputs) {
  ListMemory memory(call);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    memory.writes(outputs[i], 0, "output", i);
  }
  memory.refuse();
}

std::vector<std::size_t> findRepeated(const char* call, std::span<const at::Tensor> tensors) {
  std::vector<std::size_t> first(tensors.size());
  std::iota(first.begin(), first.end(), 0);
  std::vector<const at::Tensor*> pointers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    pointers.push_back(&tensors[i]);
    if (const Status found = FlatTensors::checkUse(deviceViewOf(tensors[i]), true); !found.isOk()) {
      refuseCall(found.code(), "{}: tensors[{}]: {}", call, i, found.message());
    }
  }
  forEachPair(pointers, [&](std::size_t i, std::size_t j) {
    if (!areOneTensor(deviceViewOf(tensors[i]), deviceViewOf(tensors[j]))) {
      refuseCall(
          StatusCode::kInvalidArgument,
          "{}: tensors[{}] and tensors[{}] share part of their memory; pass tensors that lie apart, or one that covers "
          "both",
          call, i, j);
    }
    first[j] = std::min(first[j], i);
  });
  return first;
}

}  // namespace shardwire::internal
