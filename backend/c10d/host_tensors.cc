#include "backend/c10d/host_tensors.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "backend/c10d/tensor_adapter.h"
#include "backend/c10d/throw_status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

namespace {

// Of all elements, of which an expanded tensor may have any number.
std::size_t bytesOf(const at::Tensor& tensor, std::string_view what) {
  auto bytes = static_cast<std::int64_t>(tensor.element_size());
  for (const std::int64_t extent : tensor.sizes()) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      refuseCall(StatusCode::kInvalidArgument, "{}: a tensor of shape {} has more bytes than any memory has", what,
                 shapeText(tensor));
    }
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace

at::Tensor HostTensors::see(const at::Tensor& tensor, StagedTensors::Role role, std::string_view what) {
  if (!tensor.defined() || tensor.device().is_cpu()) {
    hasHostTensors_ = hasHostTensors_ || (tensor.defined() && tensor.numel() > 0);
    return tensor;
  }
  const bool isPlain = tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_meta() &&
                       !tensor.is_conj() && !tensor.is_neg() && tensor.has_storage() && tensor.dim() <= kMaxDims &&
                       fitsStorage(tensor);
  return isPlain ? copyOf(tensor, role, what) : tensor;
}

HostTensors::List HostTensors::see(const List& tensors, StagedTensors::Role role, std::string_view what) {
  List seen;
  seen.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    // The name with its index is built only for tensors that may need the name.
    const bool isHost = !tensors[i].defined() || tensors[i].device().is_cpu();
    seen.push_back(isHost ? see(tensors[i], role, what) : see(tensors[i], role, fmt::format("{}[{}]", what, i)));
  }
  return seen;
}

at::Tensor HostTensors::copyOf(const at::Tensor& tensor, StagedTensors::Role role, std::string_view what) {
  if (Status status = stager_->checkDevice(tensor.device()); !status.isOk()) {
    throw StatusError(Status(status.code(), fmt::format("{}: {}", what, status.message())));
  }
  if (staged_ == nullptr) {
    staged_ = std::make_shared<StagedTensors>();
  }
  if (tensor.numel() == 0) {
    return at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  }
  const std::size_t bytes = bytesOf(tensor, what);
  // torch copies nothing to such a tensor, and would refuse the copy while the operation is in flight.
  if (role != StagedTensors::Role::kIn && at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    refuseCall(StatusCode::kInvalidArgument,
               "{} is an expanded tensor of shape {}, whose elements share memory; pass a tensor of its own", what,
               shapeText(tensor));
  }
  bool direct = false;
  std::shared_ptr<std::byte> memory = stager_->takeMemory(bytes, &direct);
  return staged_->add(tensor, role, std::move(memory), direct);
}

WorkPtr HostTensors::begin(WorkPtr transport, std::shared_ptr<void> keepAlive) {
  if (staged_ == nullptr || (transport != nullptr && staged_->twins().empty())) {
    return transport;
  }
  return stager_->begin(staged_, std::move(transport), hasHostTensors_, std::move(keepAlive));
}

}  // namespace shardwire::internal
