// The host copies of one operation's device tensors, cut into segments that move one by one. Written by the caller that
// starts the operation, then by the runs (through Staging) and by the stager's thread; each writes other members.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "shardwire/staging.h"

namespace shardwire::internal {

class DeviceStager;

// Bytes that one copy between a device and the host moves.
inline constexpr std::size_t kDeviceSegment = std::size_t{1} << 20;

class StagedTensors final : public Staging {
 public:
  enum class Role : unsigned char { kIn, kOut, kInOut };

  struct Segment {
    std::size_t announced = 0;             // bytes that the operation will write; set before the operation starts
    bool late = false;                     // written in boxes that are not contiguous: final at the end only
    std::atomic<std::size_t> written = 0;  // acq_rel: a reader that sees the full count sees the bytes
  };
  struct Twin {
    at::Tensor device;
    at::Tensor host;
    std::byte* first = nullptr;
    std::size_t bytes = 0;
    std::size_t segmentBytes = 0;
    bool load = false;
    bool drain = false;
    bool direct = false;  // the device itself copies from and to this memory
    std::size_t announced = 0;
    std::vector<Segment> segments;
    std::atomic<std::size_t> ready = 0;  // bytes from the first on; release pairs with isReady's acquire

    // The piece of the device's tensor, or of the host's tensor, for one segment.
    at::Tensor piece(const at::Tensor& tensor, std::size_t segment) const;
    std::size_t pieceBytes(std::size_t segment) const { return std::min(segmentBytes, bytes - segment * segmentBytes); }
  };

  // A copy of `device`, a strided and non-empty tensor, in `memory`: contiguous, of the same shape and dtype.
  at::Tensor add(const at::Tensor& device, Role role, std::shared_ptr<std::byte> memory, bool direct);
  // Called after the operation was issued: from now on segments move. `onFinal` is called by the writer of a segment
  // when the segment may go back early.
  void begin(std::function<void()> onFinal);
  // The operation will never start: nothing goes back.
  void drop();
  // Called when no thread or device reads or writes the copies any more: returns the memory and releases the tensors.
  void release();

  void attach(std::function<void()> wake) override { wake_ = std::move(wake); }
  void willWrite(const std::byte* first, std::size_t extent, std::size_t bytes) override;
  bool isReady(const std::byte* first, std::size_t extent) const override;
  bool allReady() const override;
  void wrote(const std::byte* first, std::size_t extent, std::size_t bytes) override;

  std::deque<Twin>& twins() { return twins_; }
  // Devices of the tensors, each once.
  const std::vector<c10::Device>& devices() const { return devices_; }
  bool isFinal(const Twin& twin, std::size_t segment) const;
  // Whether one operation copies back to device memory that the other takes or copies back to. Call only before
  // release() of both.
  bool conflictsWith(const StagedTensors& other) const;
  void markReady(Twin& twin, std::size_t bytes);

 private:
  Twin* find(const std::byte* first);
  const Twin* find(const std::byte* first) const { return const_cast<StagedTensors*>(this)->find(first); }
  bool mayDrainEarly() const;

  std::deque<Twin> twins_;
  std::vector<c10::Device> devices_;
  bool early_ = false;
  std::function<void()> wake_;
  std::function<void()> onFinal_;
};

}  // namespace shardwire::internal
