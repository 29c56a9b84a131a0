// The engine of one rank in one group: takes operations in order, steps them, and tells their Works. It owns the connections.
//
// Threads: every state below is guarded by mutex_. Whoever waits drives: it takes the lock, polls once, and lets go; with nothing to do it
// spins for a bounded time and then sleeps on the doorbell. The process's progress thread does the same for operations that nobody waits
// for, in all its groups. Callbacks and destructors of tensors run outside of the lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/base/owner_process.h"
#include "backend/bootstrap/connect.h"
#include "backend/exec/activity.h"
#include "backend/exec/failure_callback.h"
#include "backend/exec/frame.h"
#include "backend/exec/interrupted_waits.h"
#include "backend/exec/op_recorder.h"
#include "backend/exec/operations.h"
#include "backend/exec/progress_thread.h"
#include "backend/exec/run_context.h"
#include "backend/exec/sight.h"
#include "shardwire/options.h"
#include "shardwire/staging.h"

namespace shardwire::internal {

class OneSided;
class OneSidedRequest;
class Patience;
class PointToPoint;
class ServedPart;

// Longest sleep of a waiter: bounds how late a death or a deadline is noticed.
inline constexpr Duration kMaxSleep = std::chrono::milliseconds(10);
// How often dead peers and deadlines are looked at, at most.
inline constexpr Duration kSlowCheckEvery = std::chrono::milliseconds(1);

class Engine final : public Driver, private RunHost, public Progressed, public std::enable_shared_from_this<Engine> {
 public:
  static std::shared_ptr<Engine> create(Peers peers, Rank rank, int worldSize, const Options& options, std::string groupName);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Starts operations in this order, each with the next sequence number. kAborted, kPeerFailed, ... when the group is poisoned.
  // `spinInline`: poll for so long, at most, before returning, since short operations are mostly done by then.
  Status submit(std::span<const std::shared_ptr<Activity>> activities, Duration spinInline, const CallRecord& record = {});
  // Starts a send or receive: takes `activity`, then `start(points())` under the lock.
  Status submitPoint(const std::shared_ptr<Activity>& activity, const std::function<void(PointToPoint&)>& start,
                     const CallRecord& record = {});
  Status waitFor(Activity& activity, Deadline until) override;
  // On the progress thread.
  Look lookAsLeader() override;
  // Poisons the group on this rank and tells the peers. Idempotent: the first reason stays.
  void abort(Status reason);
  // Orderly end: fails what is pending, joins the progress thread, tells the peers. Idempotent.
  void shutdown();

  Rank rank() const { return rank_; }
  int worldSize() const { return worldSize_; }
  const Options& options() const { return options_; }
  const std::string& groupName() const { return groupName_; }
  // A child of fork() has neither the threads nor the peers: who may run there asks first, before it takes any lock.
  const OwnerProcess& owner() const { return owner_; }
  InterruptedWaits& interruptedWaits() { return interruptedWaits_; }
  // "rank 1 of 4, group \"dp\"": for messages.
  const std::string& groupLabel() const { return context_.label; }
  std::uint64_t sequenceNumber() const;
  Status status() const;
  Duration timeout() const;
  void setTimeout(Duration timeout);
  // engine_sight.cc. What this rank does in this group, for people. Waits for the engine's lock for `patience` at most; without it, what
  // the flight recorder knows.
  GroupSight sight(Duration patience);
  const OpRecorder& recorder() const { return recorder_; }
  // The job's rank of each member, for what is told of the group; 0, 1, 2... until it is said.
  std::vector<std::int64_t> globalRanks() const;
  void setGlobalRanks(std::vector<std::int64_t> ranks);
  // `call` is called after each later failure: a timeout, a rank that is gone, ranks that disagree. Outside of the lock, before callers
  // hear of it as far as that can be.
  void onFailure(std::function<void()> call) { failureCallback_.set(std::move(call)); }
  std::span<const std::int32_t> hosts() const { return peers_.hosts; }
  // Runs `action` under the lock. It must not wait.
  void underLock(const std::function<void()>& action) const {
    const MutexLock lock(mutex_);
    action();
  }
  std::string describeTransports();
  // Another group of this process failed: the peers of this one are told. Never waits.
  void hearOfFailure();
  // For waits outside of operations (symmetric memory): moves on what is there, and tells why the wait is in vain: the group failed, or one
  // of `peers` is gone.
  Status lookFor(std::span<const Rank> peers);
  // The same without the questions: moves on what is there, unless another thread does.
  void help();
  // One-sided access (one_sided.h): starts a request to the peers. The first of an error's reasons as submit().
  Status request(const std::shared_ptr<OneSidedRequest>& request, std::span<const Rank> peers);
  // The first of `peers` that began the next exchange of this group, of one of those fingerprints, which this rank has not called; -1:
  // none.
  Rank firstAhead(std::span<const Rank> peers, std::span<const std::uint64_t> fingerprints) const;
  // Until all peers have done what was requested of them. absent: the group's timeout.
  Status quiet(std::optional<Duration> timeout);
  // What peers may do with this rank's part of a block, from now on until it is withdrawn or the group ended. Then, who of them will: a
  // thread looks for what they ask.
  void serve(std::uint64_t block, std::shared_ptr<ServedPart> part);
  void expectRequests(std::uint64_t block, std::vector<Rank> askers);
  void withdraw(std::uint64_t block);
  // Tells the peer that this rank has no use for its part any more.
  void drop(Rank peer, std::uint64_t block);
  // Whether this rank is joined to all others.
  bool areAllJoined() const;
  // See Connection::hold(). kAborted when the group is closed.
  Result<std::shared_ptr<HeldMemory>> hold(Rank peer, const HeapPlace& place, std::size_t size);

  // Lets `staging` (null: nothing to do) wake this engine when bytes become ready.
  void attach(Staging* staging);

  // Bytes of one staged segment: both ends of an edge cut boxes alike.
  std::size_t segmentBytes() const { return context_.segmentBytes; }

 private:
  // What this rank knows about a peer that keeps it waiting.
  struct Waiting {
    std::uint64_t askedSeq = 0;  // the latest operation of which the peer was told that this rank waits in it
    std::uint64_t answeredSeq = 0;
    std::string answer;         // what the peer was doing when it was asked about answeredSeq
    std::uint64_t overSeq = 0;  // the peer has finished this operation
    Clock::time_point overSince{};
    std::string advice;  // why another group of the peer's process failed; empty: none did
    Clock::time_point advisedAt{};
    Clock::time_point lastLookAt{};  // when it was last asked whether it comes at all
    bool adviceDue = false;          // our own advice is still to be sent to it
  };

  // What completed, on its way out of the lock; flush() empties it.
  struct Completions {
    std::vector<Activity::Completion> list;
    std::vector<Activity::Completion>* spare = nullptr;  // the thread's, where the emptied list goes
    bool hasFailure = false;                             // the group failed meanwhile
  };

  Engine(Peers peers, Rank rank, int worldSize, const Options& options, std::string groupName);
  // RunHost: under the lock.
  void fail(Status why) override;
  void desync(Rank peer, std::uint64_t seq) override;
  bool refuseStale(Rank peer) override;
  void finish(Activity& activity, Status status) override;
  void begin(Activity& activity) override;
  // Everything fails from here on. tellPeers: they fail at once with the same text.
  void poison(Status status, bool tellPeers) SW_REQUIRES(mutex_);
  Connection& connection(Rank peer) const { return context_.connection(peer); }
  // What the calling thread is responsible for while it flushes.
  enum class Driving : unsigned char { kNo, kCaller, kProgressThread };
  // Around callbacks: somebody else drives meanwhile. stepBack: false when another thread leads by now.
  void stepAside(Driving driving, std::uint64_t* turn);
  bool stepBack(Driving driving, std::uint64_t turn);
  // Polls until `activity` is done (true) or `until` passes (false).
  bool drive(Activity& activity, Deadline until, Patience& patience) SW_EXCLUDES(mutex_);
  void sleepOnBell(const Activity& activity, Deadline until, Patience& patience) SW_EXCLUDES(mutex_);
  bool pollOrNot(bool looksSlow, Completions* done) SW_EXCLUDES(mutex_);
  bool pollLocked() SW_REQUIRES(mutex_);
  // engine_links.cc
  bool isJoined(Rank peer) const SW_REQUIRES(mutex_) { return isJoined_[static_cast<std::size_t>(peer)]; }
  bool isJoinedToAll() const SW_REQUIRES(mutex_) { return joined_.size() + 1 == static_cast<std::size_t>(worldSize_); }
  void tellLateComers() SW_EXCLUDES(mutex_);
  Rank nextMissing(const Activity& activity, Rank first) const SW_REQUIRES(mutex_);
  void wantLinks(Activity& activity) SW_REQUIRES(mutex_);
  bool takeLateLinks() SW_REQUIRES(mutex_);
  void takeLink(std::unique_ptr<Connection> connection) SW_REQUIRES(mutex_);
  bool mayHearMore(Clock::time_point now) SW_REQUIRES(mutex_);
  std::string missingLinks(const Activity& activity) const SW_REQUIRES(mutex_);
  // Before callers' tensors are let go: nothing under way over a wire touches them any more, or they stay.
  void stopFetches() SW_REQUIRES(mutex_);
  // The end of shutdown().
  void closeConnections() SW_EXCLUDES(mutex_);
  void drainControl(Rank peer) SW_REQUIRES(mutex_);
  // engine_questions.cc
  void askAndAnswer(Clock::time_point now) SW_REQUIRES(mutex_);
  void askWhereTheyAre(Rank peer, Clock::time_point now) SW_REQUIRES(mutex_);
  void judgeWhoIsOver(const Activity& activity, Rank peer, Clock::time_point now) SW_REQUIRES(mutex_);
  void judgeWhoStaysAway(const Activity& activity, Rank peer, Clock::time_point now) SW_REQUIRES(mutex_);
  bool ask(Rank peer, const Activity& activity, bool answerNow) SW_REQUIRES(mutex_);
  void askBeforeExpiry(Activity& activity, Clock::time_point now) SW_REQUIRES(mutex_);
  std::string answersAbout(const Activity& activity) const SW_REQUIRES(mutex_);
  void onAsk(Rank from, const Received<AskFrame>& frame, std::span<const std::byte> bytes) SW_REQUIRES(mutex_);
  void onAnswer(Rank from, const Received<AnswerFrame>& frame) SW_REQUIRES(mutex_);
  void onAdvice(Rank from, const Received<AdviceFrame>& frame) SW_REQUIRES(mutex_);
  void answer(Rank to, std::uint64_t seq, AskedState state, const std::string& text) SW_REQUIRES(mutex_);
  void tellAdvice(bool isFarewell = false) SW_REQUIRES(mutex_);
  // engine_frames.cc
  void handleControl(Rank from, std::span<const std::byte> frame) SW_REQUIRES(mutex_);
  // Nothing when it is no sound F: then the group is poisoned.
  template <typename F>
  std::optional<Received<F>> read(Rank from, std::span<const std::byte> frame) SW_REQUIRES(mutex_);
  void handToPoints(FrameKind kind, Rank from, std::span<const std::byte> frame) SW_REQUIRES(mutex_);
  void handToOneSided(FrameKind kind, Rank from, std::span<const std::byte> frame) SW_REQUIRES(mutex_);
  template <typename F>
  void serveOneSided(Rank from, std::span<const std::byte> frame, Status (OneSided::*take)(Rank, const Received<F>&)) SW_REQUIRES(mutex_);
  void handToGroup(FrameKind kind, Rank from, std::span<const std::byte> frame) SW_REQUIRES(mutex_);
  template <typename F>
  void handToOperation(Rank from, std::span<const std::byte> frame, Status (Activity::*take)(Rank, const Received<F>&)) SW_REQUIRES(mutex_);
  void poisonUnlessOk(Status status) SW_REQUIRES(mutex_);
  void deliverEarly(Activity& activity) SW_REQUIRES(mutex_);
  void checkSlow(bool quiet) SW_REQUIRES(mutex_);
  void expire(const std::shared_ptr<Activity>& activity) SW_REQUIRES(mutex_);
  void noteDown(Rank peer, Status why) SW_REQUIRES(mutex_);
  Status goneError(const std::vector<Rank>& gone) const SW_REQUIRES(mutex_);
  void tellFailure(std::string notice) SW_REQUIRES(mutex_);
  void onFail(const Received<FailFrame>& frame) SW_REQUIRES(mutex_);
  void onDesync(Rank from, const Received<DesyncFrame>& frame) SW_REQUIRES(mutex_);
  void flushFailNotices() SW_REQUIRES(mutex_);
  void take(const std::shared_ptr<Activity>& activity) SW_REQUIRES(mutex_);
  // submit()
  void startAll(std::span<const std::shared_ptr<Activity>> activities, const CallRecord& record) SW_REQUIRES(mutex_);
  // engine_sight.cc
  void lookAtPeers(GroupSight& sight) const SW_REQUIRES(mutex_);
  void lookAtOperations(GroupSight& sight) const SW_REQUIRES(mutex_);
  void spinFor(const Activity& last, Duration spinInline) SW_REQUIRES(mutex_);
  void stopDriving() SW_REQUIRES(mutex_);
  void wakeProgress();
  // What completed, to be run and destroyed by flush(), outside of the lock. flush: false when the progress thread lost the lead meanwhile.
  void takeCompletions(Completions* done) SW_REQUIRES(mutex_) {
    if (!operations_.completions().empty() || failureDue_) {
      takeThem(done);
    }
  }
  void takeThem(Completions* done) SW_REQUIRES(mutex_);
  bool flush(Completions* done, Driving driving = Driving::kNo) SW_EXCLUDES(mutex_) {
    return (done->list.empty() && !done->hasFailure) || flushThem(done, driving);
  }
  bool flushThem(Completions* done, Driving driving) SW_EXCLUDES(mutex_);

  const OwnerProcess owner_;
  InterruptedWaits interruptedWaits_;
  const Rank rank_;
  const int worldSize_;
  const Options options_;
  const std::string groupName_;
  Peers peers_;
  Duration spin_{0};
  Duration maxInlineSpin_{0};
  Duration yieldAfter_{0};

  mutable Mutex mutex_;
  RunContext context_;  // its links and scratch under the lock; its numbers never change
  OpRecorder recorder_;
  Operations operations_ SW_GUARDED_BY(mutex_);
  bool isClosed_ SW_GUARDED_BY(mutex_) = false;  // the connections are gone
  bool fetchesStopped_ SW_GUARDED_BY(mutex_) = false;
  std::string failNotice_ SW_GUARDED_BY(mutex_);   // what peers are told, those who are joined later, too
  bool hasNotices_ SW_GUARDED_BY(mutex_) = false;  // some are still to be told
  std::vector<bool> failNoticeDue_ SW_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> desyncSeq_ SW_GUARDED_BY(mutex_);  // by peer: the operation whose description we asked for; 0: none
  std::vector<Status> peerDown_ SW_GUARDED_BY(mutex_);          // by peer: not ok once seen dead, or not to be joined
  std::vector<Rank> down_ SW_GUARDED_BY(mutex_);                // those, in order
  std::vector<bool> isJoined_ SW_GUARDED_BY(mutex_);            // by peer: not one of those that peers_.late joins when they are needed
  std::vector<Rank> joined_ SW_GUARDED_BY(mutex_);              // the peers that are
  Clock::time_point hearsUntil_ SW_GUARDED_BY(mutex_){};        // a peer is gone, and others that are not joined yet may tell why
  std::vector<Waiting> waiting_ SW_GUARDED_BY(mutex_);          // by peer
  std::uint64_t adviceVersion_ SW_GUARDED_BY(mutex_) = 0;       // of processFailuresVersion()
  std::string advice_ SW_GUARDED_BY(mutex_);                    // what the peers were told, or are to be
  Clock::time_point lastSlowCheck_ SW_GUARDED_BY(mutex_){};
  Clock::time_point lastQuestions_ SW_GUARDED_BY(mutex_){};
  std::unique_ptr<PointToPoint> points_ SW_PT_GUARDED_BY(mutex_);
  std::unique_ptr<OneSided> oneSided_ SW_PT_GUARDED_BY(mutex_);
  bool failureDue_ SW_GUARDED_BY(mutex_) = false;  // failureCallback_ is to run

  FailureCallback failureCallback_;
  mutable Mutex ranksMutex_;
  std::vector<std::int64_t> globalRanks_ SW_GUARDED_BY(ranksMutex_);
  const Clock::time_point madeAt_ = Clock::now();

  std::atomic<int> drivers_{0};   // threads in drive() or submit(): the progress thread leaves the work to them
  std::atomic<int> sleepers_{0};  // threads in drive() that may be asleep: completions wake them, and only them
  // For the progress thread: whether it must look at this group before nextIdleLook_. Set with what it is to see, cleared by it.
  std::atomic<bool> hasWork_{false};
  std::atomic<Clock::time_point> nextIdleLook_{};
  const std::shared_ptr<ProgressThread> progress_;  // of this process
  Mutex shutdownMutex_;                             // one shutdown at a time
  bool stopped_ SW_GUARDED_BY(shutdownMutex_) = false;
};

}  // namespace shardwire::internal
