// The state of one rank's engine without threads, with the input in the place of the peers: frames of any bytes come
// over fake links, and each frame is followed by one poll. Peers may expose memory at an address that is the same in
// each run, so that an input means the same in each run.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/exec/group_state.h"
#include "shardwire/tensor_view.h"
#include "tests/backend/exec/fake_group.h"

namespace shardwire::fuzz {

// 64 KiB at a fixed address.
std::span<std::byte> steadyMemory();
// The next `bytes` of the steady memory, of which *used are in use.
std::byte* steadyBytes(std::size_t bytes, std::size_t* used);

// A tensor with memory of exactly its length, so that ASan sees each step outside.
class OwnTensor {
 public:
  OwnTensor(DType dtype, const Dims& shape);
  const TensorView& view() const { return view_; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  TensorView view_;
};
// Nothing where the tensors are too large for a test.
std::optional<std::vector<OwnTensor>> tensorsOf(const std::vector<std::pair<DType, Dims>>& kinds);
std::vector<TensorView> viewsOf(const std::vector<OwnTensor>& tensors);

class FuzzedGroup {
 public:
  // `reach`: how all peers can read this rank's memory; absent: peers with odd numbers directly, and others not at all.
  FuzzedGroup(Rank rank, int worldSize, std::optional<internal::Reach> reach = std::nullopt);
  ~FuzzedGroup();

  internal::GroupState& state() { return *state_; }
  void start(const std::shared_ptr<internal::Activity>& activity, std::uint64_t fingerprint);
  // A byte with the lane (bits 0 and 1), kRaw and the sender (the upper bits, modulo the number of peers), then a
  // frame. Without kRaw the first bytes of the frame are set so that the fields of the frame's kind are read.
  void take(std::string_view bytes);
  static constexpr unsigned char kRaw = 4;
  // The frames sent to `peer` so far, in the form of take(), and no longer in the links.
  std::vector<std::string> sent(Rank peer);

 private:
  void poll();
  // The bytes of all requested fetches arrive, or the group fails, since a peer did not expose the bytes. True when a
  // fetch ended.
  bool endFetches();

  const Rank rank_;
  internal::Peers peers_;
  std::vector<std::unique_ptr<internal::FakeConnection>> others_;  // the peers' ends
  internal::OpRecorder recorder_{0};
  internal::FailureCallback callback_;
  std::atomic<bool> hasWork_{false};
  std::unique_ptr<internal::GroupState> state_;
};

}  // namespace shardwire::fuzz
