// The flight recorder of one rank in one group: the last operations, with sizes, times and how they ended. The engine writes it, under its
// own lock; who wants to know reads it without that lock, so that a busy engine can be looked at, too. Off (capacity 0) it is never
// touched.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/activity.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// How many operations are remembered where nobody said.
inline constexpr int kRecordedOps = 256;

// By which a call goes on.
struct CallPart {
  std::uint64_t seq = 0;     // of this part
  std::uint64_t call = 0;    // Activity::call; 0: none
  std::uint64_t record = 0;  // Activity::record
};
inline CallPart partOf(const Activity& activity) {
  return {activity.seq, activity.call, activity.record};
}

// What a caller says of its call. All of it is read before the call returns.
struct CallRecord {
  const char* name = "agree";  // of static life: "all_reduce"
  std::span<const TensorView> inputs{};
  std::span<const TensorView> outputs{};
  // How several tensors are written down: each by itself, n of one shape as one of [n, shape...], or as one of all their elements.
  enum class Lists : std::uint8_t { kEach, kStacked, kJoined };
  Lists lists = Lists::kEach;
  CallPart continues{};     // this is the next part of a call that began with another submit()
  bool isHeldBack = false;  // it starts when earlier operations over the same memory are over
  // Of messages: who sends to whom (kNobody: from any rank, not matched yet), and their tag.
  bool isMessage = false;
  Rank source = -1;
  Rank destination = -1;
  int tag = 0;
};

struct RecordedTensor {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
};

struct RecordedOp {
  std::uint64_t number = 0;    // in this group, from 1
  std::uint64_t recordId = 0;  // in the order of all operations of the process, from 0
  std::uint64_t seq = 0;       // the call's number (Activity::call), equal on all ranks; 0 for messages
  // Of messages: in the order of those from source to destination with this tag. It begins anew for a tag of which none was called for
  // long.
  std::uint64_t messageNumber = 0;
  const char* name = "";
  Description description;
  std::vector<RecordedTensor> inputs;
  std::vector<RecordedTensor> outputs;
  bool isMessage = false;
  Rank source = -1;
  Rank destination = -1;
  int tag = 0;
  Duration timeout{0};
  Clock::time_point called{};
  Clock::time_point started{};  // zero: it waits for earlier operations
  Clock::time_point ended{};    // zero: in flight
  StatusCode code = StatusCode::kOk;

  bool isOver() const { return ended != Clock::time_point{}; }
};

class OpRecorder {
 public:
  explicit OpRecorder(std::size_t capacity) : capacity_(capacity) {}
  OpRecorder(const OpRecorder&) = delete;
  OpRecorder& operator=(const OpRecorder&) = delete;

  bool isOn() const { return capacity_ != 0; }
  // Gives the number by which the operation is known to the next two.
  std::uint64_t call(const CallRecord& call, const Activity& activity);
  void start(std::uint64_t number);
  void end(std::uint64_t number, StatusCode code, Rank source);
  // Oldest first; at most `most` of the latest.
  std::vector<RecordedOp> latest(std::size_t most = static_cast<std::size_t>(-1)) const;

 private:
  RecordedOp* find(std::uint64_t number) SW_REQUIRES(mutex_);
  std::uint64_t nextMessage(const RecordedOp& op) SW_REQUIRES(mutex_);
  void forgetTags() SW_REQUIRES(mutex_);

  const std::size_t capacity_;
  mutable Mutex mutex_;  // taken under the engine's lock; nothing is taken under it
  std::uint64_t count_ SW_GUARDED_BY(mutex_) = 0;
  std::vector<RecordedOp> ring_ SW_GUARDED_BY(mutex_);  // grows to capacity_; an entry's vectors are used again
  // By source, destination and tag.
  struct Tag {
    std::uint64_t numMessages = 0;
    std::uint64_t latest = 0;  // RecordedOp::number of its latest message
  };
  // One by one among malloc's blocks, tags that come and go would break up the room that tensors of megabytes leave, and it would grow with
  // every few of them (bench/soak.py: 60 MiB in ten minutes). So they lie together.
  std::pmr::unsynchronized_pool_resource tagMemory_ SW_GUARDED_BY(mutex_);
  std::pmr::map<std::tuple<Rank, Rank, int>, Tag> tags_ SW_GUARDED_BY(mutex_){&tagMemory_};
};

}  // namespace shardwire::internal
