// The operations of a group on this rank: numbers the operations in the order of the calls, steps the operations in
// flight, ends each operation, and describes operations to people and peers. From the group's failure on, every
// operation ends with this failure. Guarded by the group's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/exec/activity.h"
#include "backend/exec/early_frames.h"
#include "backend/exec/op_history.h"
#include "backend/exec/op_recorder.h"
#include "backend/exec/run_context.h"

namespace shardwire::internal {

// For messages: "send(...)", or "all_reduce(...) (operation #3)".
std::string labelOf(const Activity& activity);

class Operations {
 public:
  Operations(RunContext& context, OpRecorder& recorder, Duration timeout);

  // ---- Starting. A collective is numbered, taken and recorded, in this order; a message is only taken and recorded.
  std::uint64_t nextCall() { return ++calls_; }
  void number(Activity& activity, std::uint64_t call);
  void take(const std::shared_ptr<Activity>& activity);
  void record(Activity& activity, const CallRecord& record);
  // Moves a numbered operation inside its call, as Activity::moveNow(), instead of taking it. True: the operation is
  // over, and its pool may already use the activity again.
  bool moveNow(Activity& activity, int polls);
  // Records a message that was over inside its call; `record` has the one tensor.
  void recordOver(const CallRecord& record, Duration timeout, std::size_t bytes);
  // Sets the deadlines of the activities taken since the last call, and returns the time. An operation of a few polls
  // ends before the first look at the clock.
  Clock::time_point startClocks();

  // ---- Moving on
  // Steps every operation once, oldest first, and retires finished operations. True when anything moved.
  bool step();
  void begin(const Activity& activity);
  void finish(const Activity& activity, Status status);
  // The group failed for this reason. The first reason stays.
  void fail(Status why) { failure_ = std::move(why); }
  const Status& failure() const { return failure_; }  // ok: the group has not failed
  // The error of a call that comes after the failure; ok: the group has not failed.
  Status refusal() const;
  // A wire could not stop its transfers: from now on the tensors of ended operations are never released.
  void keepTensors() { keepsTensors_ = true; }
  Status failureOf(const Activity& activity, const Status& cause) const;
  // The ended operations, whose callbacks and destructors run outside of the lock.
  std::vector<Activity::Completion>& completions() { return completions_; }

  // ---- Looking
  const std::vector<std::shared_ptr<Activity>>& inFlight() const { return inFlight_; }
  Activity* find(std::uint64_t seq) const;  // in flight
  Activity* oldestThatNeeds(Rank peer) const;
  std::uint64_t nextSeq() const { return nextSeq_; }
  std::uint64_t numCalls() const { return calls_; }
  std::string describe(std::uint64_t seq) const;
  std::string describeLatest() const { return nextSeq_ == 1 ? std::string() : describe(nextSeq_ - 1); }
  // "is in all_reduce(...) (operation #3): rank 2 did not arrive".
  std::string describeNow() const;
  // The peers that keep this rank waiting: peers without any arrival first, then by the age of the operations. At most
  // `most` peers.
  std::vector<Rank> awaited(std::size_t most) const;
  // An older collective in flight that needs a peer: this rank's operation may wait for the older one. Null: none.
  const Activity* earlierThan(const Activity& activity) const;
  std::uint64_t callOf(std::uint64_t seq) const;  // 0: not called, or too long ago
  const EdgeBytes& traffic(Rank peer) const { return traffic_[static_cast<std::size_t>(peer)]; }
  Duration timeout() const { return timeout_; }
  void setTimeout(Duration timeout) { timeout_ = timeout; }

  // ---- Frames
  EarlyFrames& early() { return early_; }
  const EarlyFrames& early() const { return early_; }
  // False: the frame is kept until the operation starts, or the two ranks called different operations.
  bool isForNow(Rank from, const OperationTag& operation, std::span<const std::byte> frame);
  // Whether this rank called another operation of this number.
  bool isOther(const OperationTag& operation) const;
  // A rank gave the operation up. A peer without a link to this rank at the time may come to the operation later, and
  // then gets the news from this rank.
  void noteGivenUp(const OperationTag& operation, Rank by, std::string_view why);
  bool isGivenUp(const OperationTag& operation) const;
  // False: not given up, or no room now.
  bool sendGivenUp(Rank to, const OperationTag& operation) const;

 private:
  void retire(std::size_t index, Status status);
  void recordEnd(const Activity& activity, const Status& status);

  RunContext& context_;
  OpRecorder& recorder_;
  Duration timeout_;  // of operations without a timeout in the call
  std::uint64_t nextSeq_ = 1;
  std::uint64_t calls_ = 0;  // of users; each is one or several activities
  std::vector<std::shared_ptr<Activity>> inFlight_;
  std::vector<Activity::Completion> completions_;
  std::vector<bool> blockedBulk_;
  EarlyFrames early_;
  OpHistory history_;
  std::vector<EdgeBytes> traffic_;  // by peer: moved so far, by recorded operations
  Status failure_;
  bool keepsTensors_ = false;
};

}  // namespace shardwire::internal
