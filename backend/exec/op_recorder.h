// The flight recorder of one rank in one group: the last operations, with sizes, times and results. The engine writes
// the recorder under the engine's lock; readers need no engine lock, so even a busy engine can be examined. Never
// touched when off (capacity 0).
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <span>
#include <tuple>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/activity.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// The default number of remembered operations.
inline constexpr int kRecordedOps = 256;

// The numbers by which a later part continues a call.
struct CallPart {
  std::uint64_t seq = 0;     // of this part
  std::uint64_t call = 0;    // Activity::call; 0: none
  std::uint64_t record = 0;  // Activity::record
};
inline CallPart partOf(const Activity& activity) {
  return {activity.seq, activity.call, activity.record};
}

// The facts about a call for the recorder. Everything is read before the call returns.
struct CallRecord {
  const char* name = "agree";  // of static life: "all_reduce"
  std::span<const TensorView> inputs{};
  std::span<const TensorView> outputs{};
  // How several tensors are recorded: each alone, n tensors of one shape as one tensor [n, shape...], or as one tensor
  // of all elements.
  enum class Lists : std::uint8_t { kEach, kStacked, kJoined };
  Lists lists = Lists::kEach;
  CallPart continues{};     // this is the next part of a call begun by another submit()
  bool isHeldBack = false;  // the operation starts when earlier operations over the same memory are over
  // For messages: the sending and the receiving rank (source -1: from any rank, not matched yet), and the tag.
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
  // For messages: counts the messages from source to destination with this tag. The count begins anew if the tag was
  // not used for long.
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
  Clock::time_point started{};  // zero: the operation waits for earlier operations
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
  // Returns the number of the operation for start() and end().
  std::uint64_t call(const CallRecord& call, const Activity& activity);
  // Records a message that was over inside its call.
  void over(const CallRecord& call, const Description& description, Duration timeout);
  void start(std::uint64_t number);
  void end(std::uint64_t number, StatusCode code, Rank source);
  // Oldest first; at most `most` of the latest.
  std::vector<RecordedOp> latest(std::size_t most = static_cast<std::size_t>(-1)) const;

 private:
  RecordedOp& add(const CallRecord& call, const Description& description, Duration timeout) SW_REQUIRES(mutex_);
  RecordedOp* find(std::uint64_t number) SW_REQUIRES(mutex_);
  std::uint64_t nextMessage(const RecordedOp& op) SW_REQUIRES(mutex_);
  void forgetTags() SW_REQUIRES(mutex_);

  const std::size_t capacity_;
  mutable Mutex mutex_;  // taken under the engine's lock; no lock is taken under this mutex
  std::uint64_t count_ SW_GUARDED_BY(mutex_) = 0;
  std::vector<RecordedOp> ring_ SW_GUARDED_BY(mutex_);  // grows to capacity_; an entry's vectors are used again
  // By source, destination and tag.
  struct Tag {
    std::uint64_t numMessages = 0;
    std::uint64_t latest = 0;  // RecordedOp::number of the tag's latest message
  };
  // If each tag were a separate block of malloc, tags of short life would fragment the free memory between tensors of
  // megabytes, and the process would grow (bench/soak.py: 60 MiB in ten minutes). So the tags lie together.
  std::pmr::unsynchronized_pool_resource tagMemory_ SW_GUARDED_BY(mutex_);
  std::pmr::map<std::tuple<Rank, Rank, int>, Tag> tags_ SW_GUARDED_BY(mutex_){&tagMemory_};
};

}  // namespace shardwire::internal
