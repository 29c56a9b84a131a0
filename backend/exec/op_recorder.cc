#include "backend/exec/op_recorder.h"

#include <algorithm>
#include <atomic>

namespace shardwire::internal {

namespace {

std::atomic<std::uint64_t> nextRecordId{0};  // relaxed: a count alone
// The most recorded tensors of one call. A compiled op may have ten thousand tensors, and the ring would keep them for
// each run of the op.
constexpr std::size_t kMostTensors = 16;
// The most counted tags beyond the capacity of the ring: programs with a new tag for each message would fill the
// memory.
constexpr std::size_t kMostTags = 4096;

// Writes into entries of the ring, whose memory exists after the first lap.
void writeDown(std::span<const TensorView> views, CallRecord::Lists lists, std::vector<RecordedTensor>& tensors) {
  const bool asOne = lists != CallRecord::Lists::kEach && !views.empty();
  tensors.resize(asOne ? 1 : std::min(views.size(), kMostTensors));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].dtype = views[i].dtype;
    std::vector<std::int64_t>& shape = tensors[i].shape;
    shape.clear();
    if (lists == CallRecord::Lists::kJoined) {
      std::int64_t numElems = 0;
      for (const TensorView& view : views) {
        numElems += numElements(view.shape);
      }
      shape.push_back(numElems);
      continue;
    }
    if (asOne && views.size() > 1) {
      shape.push_back(static_cast<std::int64_t>(views.size()));
    }
    shape.insert(shape.end(), views[i].shape.begin(), views[i].shape.end());
  }
}

}  // namespace

std::uint64_t OpRecorder::call(const CallRecord& call, const Activity& activity) {
  const MutexLock lock(mutex_);
  if (RecordedOp* const begun = find(call.continues.record); begun != nullptr) {
    begun->ended = {};
    return begun->number;
  }
  RecordedOp& op = add(call, activity.description, activity.timeout);
  op.seq = activity.call;
  return op.number;
}

void OpRecorder::over(const CallRecord& call, const Description& description, Duration timeout) {
  const MutexLock lock(mutex_);
  RecordedOp& op = add(call, description, timeout);
  op.ended = op.called;
}

RecordedOp& OpRecorder::add(const CallRecord& call, const Description& description, Duration timeout) {
  const auto now = Clock::now();
  const std::uint64_t number = ++count_;
  if (ring_.size() < capacity_) {
    ring_.emplace_back();
  }
  RecordedOp& op = ring_[(number - 1) % capacity_];
  op.number = number;
  op.recordId = nextRecordId.fetch_add(1, std::memory_order_relaxed);
  op.seq = 0;
  op.name = call.name;
  op.description = description;
  writeDown(call.inputs, call.lists, op.inputs);
  writeDown(call.outputs, call.lists, op.outputs);
  op.isMessage = call.isMessage;
  op.source = call.source;
  op.destination = call.destination;
  op.tag = call.tag;
  op.messageNumber = call.isMessage && call.source >= 0 ? nextMessage(op) : 0;
  op.timeout = timeout;
  op.called = now;
  op.started = call.isHeldBack ? Clock::time_point{} : now;
  op.ended = {};
  op.code = StatusCode::kOk;
  return op;
}

void OpRecorder::start(std::uint64_t number) {
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  if (RecordedOp* const op = find(number); op != nullptr) {
    op->started = now;
  }
}

void OpRecorder::end(std::uint64_t number, StatusCode code, Rank source) {
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  RecordedOp* const op = find(number);
  if (op == nullptr) {
    return;  // the ring has come round meanwhile
  }
  op->ended = now;
  op->code = code;
  if (op->started == Clock::time_point{}) {
    op->started = now;
  }
  if (op->isMessage && op->source < 0 && source >= 0) {
    op->source = source;
    op->messageNumber = nextMessage(*op);
  }
}

std::vector<RecordedOp> OpRecorder::latest(std::size_t most) const {
  std::vector<RecordedOp> ops;
  const MutexLock lock(mutex_);
  const std::size_t wanted = std::min(most, ring_.size());
  ops.reserve(wanted);
  for (std::uint64_t number = count_ - wanted + 1; number <= count_; ++number) {
    ops.push_back(ring_[(number - 1) % capacity_]);
  }
  return ops;
}

RecordedOp* OpRecorder::find(std::uint64_t number) {
  const std::size_t index = (number - 1) % capacity_;
  return number != 0 && index < ring_.size() && ring_[index].number == number ? &ring_[index] : nullptr;
}

std::uint64_t OpRecorder::nextMessage(const RecordedOp& op) {
  if (tags_.size() >= capacity_ + kMostTags) {
    forgetTags();
  }
  Tag& tag = tags_[{op.source, op.destination, op.tag}];
  tag.latest = op.number;
  return ++tag.numMessages;
}

// Forgets tags whose last message is no longer in the ring: at most capacity_ tags stay, so calls are rare.
void OpRecorder::forgetTags() {
  const std::uint64_t newest = count_;
  std::erase_if(tags_, [&](const auto& item) { return item.second.latest + capacity_ <= newest; });
}

}  // namespace shardwire::internal
