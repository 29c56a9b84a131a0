#include "backend/c10d/torch_stream_gate.h"

#include <array>
#include <atomic>

#include "backend/c10d/torch_compat.h"

#if SW_TORCH_HAS_STREAM_BLOCK
#include <torch/csrc/distributed/c10d/cuda/StreamBlock.hpp>
#endif

namespace shardwire {
namespace {

constexpr auto kNumTypes = static_cast<std::size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES);
// acq_rel: a reader of a maker also sees the maker's setup.
std::array<std::atomic<MakeStreamGate>, kNumTypes> makers{};

std::atomic<MakeStreamGate>& makerOf(c10::DeviceType type) {
  return makers[static_cast<std::size_t>(type)];
}

#if SW_TORCH_HAS_STREAM_BLOCK
// torch's own gate. A torch built for the device registers the gate under the device's name.
class TorchGate final : public StreamGate {
 public:
  explicit TorchGate(std::unique_ptr<::c10d::cuda::StreamBlock> block) : block_(std::move(block)) {}
  void open() noexcept override { block_->abort(); }

 private:
  const std::unique_ptr<::c10d::cuda::StreamBlock> block_;
};

std::string nameOf(c10::DeviceType type) {
  return c10::DeviceTypeName(type, false);
}

// Not CUDA's: whatever opens the gate here calls CUDA first, to copy the result, and CUDA makes this call wait while
// another thread is in a call that waits for the stream behind the gate (the first launch of a kernel, a copy to memory
// that is not pinned). Neither would ever end: on an H200, DDP stood still in its first step.
bool torchHasGates(c10::DeviceType type) {
  return type != c10::DeviceType::CUDA && ::c10d::cuda::StreamBlockRegistry()->Has(nameOf(type));
}
#endif

}  // namespace

void setStreamGates(c10::DeviceType type, MakeStreamGate make) {
  makerOf(type).store(make, std::memory_order_release);
}

namespace internal {

bool hasStreamGates(c10::DeviceType type) {
  if (makerOf(type).load(std::memory_order_acquire) != nullptr) {
    return true;
  }
#if SW_TORCH_HAS_STREAM_BLOCK
  return torchHasGates(type);
#else
  return false;
#endif
}

std::unique_ptr<StreamGate> makeStreamGate(const c10::Stream& stream) {
  if (const MakeStreamGate make = makerOf(stream.device_type()).load(std::memory_order_acquire); make != nullptr) {
    return make(stream);
  }
#if SW_TORCH_HAS_STREAM_BLOCK
  constexpr std::chrono::milliseconds kForEver(0);
  if (torchHasGates(stream.device_type())) {
    return std::make_unique<TorchGate>(
        ::c10d::cuda::StreamBlockRegistry()->Create(nameOf(stream.device_type()), kForEver));
  }
#endif
  return nullptr;
}

}  // namespace internal
}  // namespace shardwire
