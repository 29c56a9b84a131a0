#include "backend/exec/pins.h"

#include "ops/boxes/strided_runs.h"

namespace shardwire::internal {

void Pins::add(std::span<const std::unique_ptr<Wire>> wires, const TensorView& tensor, bool isWritten) {
  const std::size_t bytes = extentBytes(boxOf(tensor), tensor.shape, elementBytes(tensor.dtype));
  if (bytes == 0) {
    return;
  }
  for (const auto& wire : wires) {
    if (const std::uint64_t id = wire->pin(tensor.bytes, bytes, isWritten, tensor.storage); id != 0) {
      pins_.push_back({wire.get(), id});
    }
  }
}

void Pins::release() {
  for (const Pin& pin : pins_) {
    pin.wire->unpin(pin.id);
  }
  pins_.clear();
}

}  // namespace shardwire::internal
