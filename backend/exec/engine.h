// The engine of one rank in one group: starts operations in the order of the calls, moves the operations along, and
// completes their Works. Callers use this class; Driving has the lock and polls, and GroupState has everything that the
// lock guards.
//
// Threads: any. Callbacks and destructors of tensors run outside of the lock.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "backend/base/mutex.h"
#include "backend/bootstrap/connect.h"
#include "backend/exec/activity.h"
#include "backend/exec/driving.h"
#include "backend/exec/failure_callback.h"
#include "backend/exec/group_memory.h"
#include "backend/exec/group_reports.h"
#include "backend/exec/group_state.h"
#include "backend/exec/interrupted_waits.h"
#include "backend/exec/op_recorder.h"
#include "backend/exec/process_failures.h"
#include "backend/exec/progress_thread.h"
#include "shardwire/options.h"
#include "shardwire/staging.h"

namespace shardwire::internal {

class Engine final : public Driver, public Progressed, public std::enable_shared_from_this<Engine> {
 public:
  // kSystem when the system gives no thread: then the group has failed and ended, and the peers were notified.
  static Result<std::shared_ptr<Engine>> create(Peers peers, Rank rank, int worldSize, const Options& options,
                                                std::string groupName);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Starts operations in this order, each with the next sequence number. kAborted, kPeerFailed, ... when the group has
  // failed. `spinInline`: the longest time of polling before the return, since most short operations end meanwhile.
  Status submit(std::span<const std::shared_ptr<Activity>> activities, Duration spinInline,
                const CallRecord& record = {});
  // submit() of one short operation of a pool. Sets `late` when the operation was not over inside the call. Else the
  // pool may already use the activity again. `keepAlive` is for the time after the call. `record`: null unless
  // isRecording().
  Status submitShort(Activity& activity, std::shared_ptr<void>& keepAlive, const CallRecord* record,
                     std::shared_ptr<Activity>* late);
  // The flight recorder is on.
  bool isRecording() const { return recorder_.isOn(); }
  // Starts a send or receive: takes `activity`, then calls `start(points)` under the lock. `spinInline` as in submit().
  Status submitPoint(const std::shared_ptr<Activity>& activity, const std::function<void(PointToPoint&)>& start,
                     Duration spinInline = {}, const CallRecord& record = {},
                     Driving::IfFailed ifFailed = Driving::IfFailed::kRefuse);
  // A short message inside the call: an operation that is done, or null when the message has to wait, and must be
  // submitted. `record` has the one tensor and both ranks. recvNow() polls for a moment if `spins`.
  Result<WorkPtr> sendNow(std::span<const std::byte> bytes, const CallRecord& record, Duration timeout);
  Result<WorkPtr> recvNow(std::span<std::byte> bytes, const CallRecord& record, Duration timeout, bool spins);
  // Fails the group on this rank and notifies the peers. Idempotent: the first reason stays.
  void abort(Status reason);
  // Fails the group on all ranks, also on ranks without a link to this rank so far. Idempotent.
  void revoke(std::string why);
  // Orderly end: fails pending operations, joins the progress thread, notifies the peers. Aborts first if an operation
  // whose wait a signal ended is still in flight. Idempotent.
  void shutdown();

  const GroupFacts& facts() const { return facts_; }
  // Returns action(state), under the lock. `action` must not wait.
  template <typename Action>
  auto locked(Action&& action) const {
    return driving_.locked(std::forward<Action>(action));
  }
  // A line for each peer. In a forked child one line, since the child has no links, and the lock may be taken for ever.
  std::string describeLinks() const;
  void setTimeout(Duration timeout);
  // `call` is called after each later failure: a timeout, a rank that is gone, ranks that disagree. The call runs
  // outside of the lock, and before callers see the failure as far as possible.
  void onFailure(std::function<void()> call) { failureCallback_.set(std::move(call)); }
  // Lets `staging` (null: nothing to do) wake this engine when bytes become ready.
  void attach(Staging* staging);
  // For symmetric memory, whose waits and requests are outside of operations.
  GroupMemory& memory() { return memory_; }
  GroupReports& reports() { return reports_; }

 private:
  Engine(Peers peers, GroupFacts facts);
  Status waitFor(Activity& activity, Deadline until) override;
  void wakeWaiters() override { peers_.doorbell->ringSelf(); }
  // On the progress thread.
  Look lookAsLeader() override { return driving_.lookAsLeader(); }
  // Another group of this process failed: notifies the peers of this group. Never waits.
  void onProcessFailure();
  void stayForLatePeers();
  void stayForRoom();
  // The key of this group in the process's list of failures.
  ProcessGroup failureKey() const;

  InterruptedWaits interruptedWaits_;
  Peers peers_;
  const GroupFacts facts_;
  OpRecorder recorder_;
  FailureCallback failureCallback_;
  Driving driving_;
  GroupMemory memory_;
  GroupReports reports_;
  Mutex shutdownMutex_;  // one shutdown at a time
  bool stopped_ SW_GUARDED_BY(shutdownMutex_) = false;
};

}  // namespace shardwire::internal
