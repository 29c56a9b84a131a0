// The engine of one rank in one group: takes operations in order, steps them, and tells their Works. It owns the connections.
//
// Threads: every state below is guarded by mutex_. Whoever waits drives: it takes the lock, polls once, and lets go; with nothing to do it
// spins for a bounded time and then sleeps on the doorbell. The progress thread does the same for operations that nobody waits for, and
// holds the liveness mark by which peers notice that this process died. Callbacks and destructors of tensors run outside of the lock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/bootstrap/connect.h"
#include "backend/exec/activity.h"
#include "backend/exec/frame.h"
#include "backend/exec/progress_role.h"
#include "shardwire/options.h"
#include "shardwire/staging.h"

namespace shardwire::internal {

class PointToPoint;

// Longest sleep of a waiter: bounds how late a death or a deadline is noticed.
inline constexpr Duration kMaxSleep = std::chrono::milliseconds(10);
// Descriptions kept, to answer a peer that is doing something else.
inline constexpr std::size_t kHistory = 64;

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  static std::shared_ptr<Engine> create(Peers peers, Rank rank, int worldSize, const Options& options, std::string groupName);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Starts operations in this order, each with the next sequence number. kAborted, kPeerFailed, ... when the group is poisoned.
  // `spinInline`: poll for so long, at most, before returning, since short operations are mostly done by then.
  Status submit(std::span<const std::shared_ptr<Activity>> activities, Duration spinInline);
  // Starts a send or receive: takes `activity`, then `start(points())` under the lock.
  Status submitPoint(const std::shared_ptr<Activity>& activity, const std::function<void(PointToPoint&)>& start);
  // Polls until `activity` is done (true) or `until` passes (false).
  bool drive(Activity& activity, Deadline until);
  // Poisons the group on this rank and tells the peers. Idempotent: the first reason stays.
  void abort(Status reason);
  // Orderly end: fails what is pending, joins the progress thread, tells the peers. Idempotent.
  void shutdown();

  Rank rank() const { return rank_; }
  int worldSize() const { return worldSize_; }
  const Options& options() const { return options_; }
  const std::string& groupName() const { return groupName_; }
  // "rank 1 of 4, group \"dp\"": for messages.
  std::string groupLabel() const;
  std::uint64_t sequenceNumber() const;
  Status status() const;
  Duration timeout() const;
  void setTimeout(Duration timeout);
  Connection* connection(Rank peer) { return peers_.connections[static_cast<std::size_t>(peer)].get(); }
  std::span<const std::int32_t> hosts() const { return peers_.hosts; }
  // Runs `action` under the lock. It must not wait.
  void underLock(const std::function<void()>& action) const {
    std::lock_guard lock(mutex_);
    action();
  }
  std::string describeTransports();

  // Lets `staging` (null: nothing to do) wake this engine when bytes become ready.
  void attach(Staging* staging);

  // For activities, under the engine's lock.

  // Bytes of one staged segment: both ends of an edge cut boxes alike.
  std::size_t segmentBytes() const { return segmentBytes_; }
  // Scratch of at least `bytes`, kept for later; valid until the next call.
  std::span<std::byte> scratch(std::size_t bytes);
  // Sends one control frame; false when there is no room now.
  bool sendControl(Rank peer, FrameHeader header, std::span<const std::byte> payload = {});
  // Everything fails from here on. tellPeers: they fail at once with the same text.
  void poison(Status status, bool tellPeers);
  // The peer is doing something else as operation `seq`: learns what, then poisons both with the same text.
  void desync(Rank peer, std::uint64_t seq);
  PointToPoint& points() { return *points_; }
  std::span<const std::unique_ptr<Wire>> wires() const { return peers_.wires; }
  // Completes an activity that is not in active_ (point to point). Called under the lock.
  void finish(Activity& activity, Status status);

 private:
  struct EarlyFrame {
    Rank from = 0;
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  struct History {
    std::uint64_t seq = 0;
    Description description;
  };

  Engine(Peers peers, Rank rank, int worldSize, const Options& options, std::string groupName);
  // What the calling thread is responsible for while it flushes.
  enum class Driving : unsigned char { kNo, kCaller, kProgressThread };
  void progressThread();
  void lead();
  void startFollower();
  // Around callbacks: somebody else drives meanwhile. stepBack: false when another thread leads by now.
  void stepAside(Driving driving, std::uint64_t* turn);
  bool stepBack(Driving driving, std::uint64_t turn);
  bool pollLocked();
  // Before callers' tensors are let go: nothing under way over a wire touches them any more, or they stay.
  void stopFetches();
  bool drainControl(Rank peer);
  bool handleControl(Rank from, const FrameHeader& header, std::span<const std::byte> payload);
  void deliverEarly(Activity& activity);
  void checkSlow(bool quiet);
  void expire(const std::shared_ptr<Activity>& activity);
  void retire(std::size_t index, Status status);
  Status failureOf(const Activity& activity, const Status& cause) const;
  void flushFailNotices();
  void take(const std::shared_ptr<Activity>& activity);
  Clock::time_point startClocks();
  void stopDriving();
  // Runs completions outside of the lock; `lock` is released on return. False: the progress thread lost the lead meanwhile.
  bool unlockAndFlush(std::unique_lock<std::mutex>& lock, Driving driving = Driving::kNo);
  std::string describeSeq(std::uint64_t seq) const;

  const Rank rank_;
  const int worldSize_;
  const Options options_;
  const std::string groupName_;
  Peers peers_;
  std::size_t segmentBytes_ = 0;
  Duration spin_{0};
  Duration maxInlineSpin_{0};
  Duration yieldAfter_{0};

  mutable std::mutex mutex_;
  Duration timeout_;
  std::uint64_t nextSeq_ = 1;
  std::vector<std::shared_ptr<Activity>> active_;
  std::vector<Activity::Completion> completions_;
  std::vector<bool> blockedBulk_;
  std::vector<EarlyFrame> early_;
  std::vector<std::vector<std::byte>> spareBuffers_;
  std::vector<std::byte> scratch_;
  std::optional<Status> poison_;
  bool fetchesStopped_ = false;
  bool mustKeepTensors_ = false;  // a wire could not stop what is under way
  std::string failNotice_;        // what peers are still to be told
  std::vector<bool> failNoticeDue_;
  std::vector<std::uint64_t> desyncSeq_;  // by peer: the operation whose description we asked for; 0: none
  std::vector<Status> peerDown_;          // by peer: not ok once seen dead
  std::vector<History> history_;          // ring, by seq
  Clock::time_point lastSlowCheck_{};
  std::unique_ptr<PointToPoint> points_;

  std::atomic<int> drivers_{0};   // threads in drive() or submit(): the progress thread leaves the work to them
  std::atomic<int> sleepers_{0};  // threads in drive() that may be asleep: completions wake them, and only them
  std::atomic<bool> stop_{false};
  ProgressRole role_;
  std::mutex followersMutex_;
  std::vector<std::thread> followers_;  // guarded by followersMutex_; started when callbacks first run on a progress thread
  std::mutex shutdownMutex_;            // one shutdown at a time
  std::thread thread_;
  bool stopped_ = false;  // guarded by shutdownMutex_
};

}  // namespace shardwire::internal
