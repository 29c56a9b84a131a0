// Each device tensor has a twin on the host, cut into segments of about 1 MiB. Towards the host, bytes become ready in
// order, so one number holds the progress. Towards the device, runs first announce how many bytes of each segment they
// will write (willWrite) and then count the bytes written (wrote). A segment whose count is full is final and may go
// back before the operation is over.
#include "backend/c10d/staged_tensors.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "backend/c10d/tensor_adapter.h"
#include "ops/boxes/view_overlap.h"

namespace shardwire::internal {

at::Tensor StagedTensors::Twin::piece(const at::Tensor& tensor, std::size_t segment) const {
  if (segments.size() == 1) {
    return tensor;
  }
  const auto elements = [&](std::size_t count) { return static_cast<std::int64_t>(count / device.element_size()); };
  if (device.is_contiguous()) {
    return tensor.as_strided({elements(pieceBytes(segment))}, {1},
                             tensor.storage_offset() + elements(segment * segmentBytes));
  }
  const std::size_t rowBytes = bytes / static_cast<std::size_t>(device.size(0));
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] = static_cast<std::int64_t>(pieceBytes(segment) / rowBytes);
  const auto firstRow = static_cast<std::int64_t>(segment * segmentBytes / rowBytes);
  return tensor.as_strided(sizes, tensor.strides(), tensor.storage_offset() + firstRow * tensor.stride(0));
}

at::Tensor StagedTensors::add(const at::Tensor& device, Role role, std::shared_ptr<std::byte> memory, bool direct) {
  Twin& twin = twins_.emplace_back();
  twin.device = device;
  twin.first = memory.get();
  twin.bytes = static_cast<std::size_t>(device.numel()) * device.element_size();
  twin.host = at::from_blob(
      memory.get(), device.sizes(), [memory](void*) {}, at::TensorOptions(device.scalar_type()));
  twin.load = role != Role::kOut;
  twin.drain = role != Role::kIn;
  twin.direct = direct;
  // Whole elements of a contiguous tensor, whole rows of any other tensor.
  const std::size_t unit = device.is_contiguous() || device.dim() == 0
                               ? device.element_size()
                               : twin.bytes / static_cast<std::size_t>(device.size(0));
  twin.segmentBytes = std::min(twin.bytes, std::max(unit, kDeviceSegment / unit * unit));
  twin.segments = std::vector<Segment>((twin.bytes + twin.segmentBytes - 1) / twin.segmentBytes);
  if (std::find(devices_.begin(), devices_.end(), device.device()) == devices_.end()) {
    devices_.push_back(device.device());
  }
  return twin.host;
}

// False when tensors share memory on the device: an early copy back could overwrite bytes still to be loaded.
bool StagedTensors::mayDrainEarly() const {
  for (const Twin& in : twins_) {
    for (const Twin& out : twins_) {
      if (&in != &out && in.load && out.drain && in.device.device() == out.device.device() &&
          addressRange(deviceViewOf(in.device)).meets(addressRange(deviceViewOf(out.device)))) {
        return false;
      }
    }
  }
  return true;
}

bool StagedTensors::conflictsWith(const StagedTensors& other) const {
  return std::any_of(twins_.begin(), twins_.end(), [&](const Twin& mine) {
    return std::any_of(other.twins_.begin(), other.twins_.end(), [&](const Twin& theirs) {
      return (mine.drain || theirs.drain) && mine.device.device() == theirs.device.device() &&
             shareMemory(deviceViewOf(mine.device), deviceViewOf(theirs.device));
    });
  });
}

void StagedTensors::begin(std::function<void()> onFinal) {
  onFinal_ = std::move(onFinal);
  for (Twin& twin : twins_) {
    // Bytes not written by the operation must survive the copy back, so they are loaded first.
    twin.load = twin.load || twin.announced < twin.bytes;
  }
  early_ = mayDrainEarly();
  for (Twin& twin : twins_) {
    if (!twin.load) {
      twin.ready.store(twin.bytes, std::memory_order_release);
    }
  }
  if (wake_) {
    wake_();
  }
}

void StagedTensors::drop() {
  for (Twin& twin : twins_) {
    twin.drain = false;
  }
}

void StagedTensors::release() {
  for (Twin& twin : twins_) {
    twin.device.reset();
    twin.host.reset();
  }
}

StagedTensors::Twin* StagedTensors::find(const std::byte* first) {
  for (Twin& twin : twins_) {
    if (first >= twin.first && first < twin.first + twin.bytes) {
      return &twin;
    }
  }
  return nullptr;
}

void StagedTensors::willWrite(const std::byte* first, std::size_t extent, std::size_t bytes) {
  Twin* twin = find(first);
  if (twin == nullptr || bytes == 0) {
    return;
  }
  twin->announced += bytes;
  auto offset = static_cast<std::size_t>(first - twin->first);
  for (std::size_t left = extent; left > 0;) {
    Segment& segment = twin->segments[offset / twin->segmentBytes];
    const std::size_t part = std::min(left, twin->segmentBytes - offset % twin->segmentBytes);
    segment.late = segment.late || extent != bytes;
    segment.announced += part;
    offset += part;
    left -= part;
  }
}

bool StagedTensors::isReady(const std::byte* first, std::size_t extent) const {
  const Twin* twin = find(first);
  return twin == nullptr ||
         static_cast<std::size_t>(first - twin->first) + extent <= twin->ready.load(std::memory_order_acquire);
}

bool StagedTensors::allReady() const {
  return std::all_of(twins_.begin(), twins_.end(),
                     [](const Twin& twin) { return twin.ready.load(std::memory_order_acquire) == twin.bytes; });
}

void StagedTensors::wrote(const std::byte* first, std::size_t extent, std::size_t bytes) {
  Twin* twin = find(first);
  if (twin == nullptr || extent != bytes || !early_ || !twin->drain) {
    return;
  }
  auto offset = static_cast<std::size_t>(first - twin->first);
  bool isFinal = false;
  for (std::size_t left = extent; left > 0;) {
    Segment& segment = twin->segments[offset / twin->segmentBytes];
    const std::size_t part = std::min(left, twin->segmentBytes - offset % twin->segmentBytes);
    isFinal |= segment.written.fetch_add(part, std::memory_order_acq_rel) + part == segment.announced && !segment.late;
    offset += part;
    left -= part;
  }
  if (isFinal) {
    onFinal_();
  }
}

bool StagedTensors::isFinal(const Twin& twin, std::size_t index) const {
  const Segment& segment = twin.segments[index];
  return early_ && !segment.late && segment.announced > 0 &&
         segment.written.load(std::memory_order_acquire) == segment.announced;
}

void StagedTensors::markReady(Twin& twin, std::size_t bytes) {
  twin.ready.store(bytes, std::memory_order_release);
  if (wake_) {
    wake_();
  }
}

}  // namespace shardwire::internal
