// The host copies of one operation's device tensors, cut into segments that come and go one by one. Written by the caller that starts the
// operation, then by the runs (through Staging) and by the stager's thread, each its own members.
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
    std::size_t announced = 0;             // bytes that will be written; set before the operation starts
    bool late = false;                     // written in boxes that are not contiguous: final at the end only
    std::atomic<std::size_t> written = 0;  // acq_rel: who sees it full sees the bytes
  };
  struct Twin {
    at::Tensor device;
    at::Tensor host;
    std::byte* first = nullptr;
    std::size_t bytes = 0;
    std::size_t segmentBytes = 0;
    bool load = false;
    bool drain = false;
    bool direct = false;  // the copy lies in memory that the device copies from and to by itself
    std::size_t announced = 0;
    std::vector<Segment> segments;
    std::atomic<std::size_t> ready = 0;  // bytes from the first on; release pairs with isReady's acquire

    // The piece of the device's tensor or of the host's that a segment is.
    at::Tensor piece(const at::Tensor& tensor, std::size_t segment) const;
    std::size_t pieceBytes(std::size_t segment) const { return std::min(segmentBytes, bytes - segment * segmentBytes); }
  };

  // A copy of `device`, which is strided and not empty, in `memory`: contiguous, of the same shape and dtype.
  at::Tensor add(const at::Tensor& device, Role role, std::shared_ptr<std::byte> memory, bool direct);
  // After the operation was issued: from now on segments come. `onFinal` is called, by whoever wrote it, when a segment may go back early.
  void begin(std::function<void()> onFinal);
  // The operation will never start: nothing goes back.
  void drop();
  // Nobody reads or writes the copies any more: the memory goes back, and the tensors are let go.
  void release();

  void attach(std::function<void()> wake) override;
  void willWrite(const std::byte* first, std::size_t extent, std::size_t bytes) override;
  bool isReady(const std::byte* first, std::size_t extent) const override;
  bool allReady() const override;
  void wrote(const std::byte* first, std::size_t extent, std::size_t bytes) override;

  std::deque<Twin>& twins() { return twins_; }
  // Devices of the tensors, each once.
  const std::vector<c10::Device>& devices() const { return devices_; }
  bool isFinal(const Twin& twin, std::size_t segment) const;
  // Whether one brings back what the other takes or brings back: memory of one device. Only before release() of both.
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
