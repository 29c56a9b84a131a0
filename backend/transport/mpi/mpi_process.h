// MPI in this process: loading the module, the check whether MPI may be used, initialisation and end, and one private
// communicator for each peer process. A process has one MPI, and so one MpiProcess. Any thread.
//
// Communicators. The program's own MPI messages must never match ours, so MPI_COMM_WORLD cannot be used. A duplicate of
// MPI_COMM_WORLD is collective over the world, so a group of some ranks could not make a duplicate. One communicator
// per group would have to be made by ranks whose sets of MPI peers differ (the other peers are reached by shared
// memory). So each pair of processes that is joined makes one communicator of the two (MPI_Comm_create_group), once.
// Groups that share the pair use different tags.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "backend/base/mutex.h"
#include "backend/transport/mpi/mpi_api.h"
#include "backend/transport/mpi/mpi_launch.h"
#include "shardwire/export.h"

namespace shardwire::internal {

class MpiProcess {
 public:
  // Loads the module on first use. kUnsupported, with the reason, when this process belongs to no MPI job, or the
  // module or MPI is missing.
  SHARDWIRE_EXPORT static Result<MpiProcess*> instance();

  // MPI is ready after this call. If MPI is not initialised yet, all ranks of the MPI world initialise MPI now. Then
  // `groupSize` must be the size of the world, since in a smaller group some ranks would never call; kWholeWorld when
  // all ranks are known to call. isAskedFor: initialise even if the whole world is on this host. kUnsupported, with
  // advice, when MPI cannot be used: the thread level is too low, or this process is a fork of a process that uses MPI.
  static constexpr int kWholeWorld = 0;
  SHARDWIRE_EXPORT Status prepare(int groupSize, bool isAskedFor, Deadline deadline);

  // Rank 0's bytes on all ranks of the job. Collective. A rank that gave up (kTimeout, kInterrupted) gets the awaited
  // bytes by its next call.
  SHARDWIRE_EXPORT Status broadcast(std::string* bytes, Deadline deadline);

  MpiApi& api() { return *api_; }
  MpiState state() const { return api_->state(); }
  // Identifies the MPI job.
  std::string job() const;

  // The pair of this process and MPI rank `worldRank`. Made on first use, collectively with the other process. The wait
  // ends early when `isWanted` returns false. If an earlier call gave up and MPI still makes the pair, this call waits
  // a few seconds and then fails with the reason of the earlier call.
  Result<MpiPair*> pairWith(int worldRank, const std::function<bool()>& isWanted, Deadline deadline);
  // The first of kTagsPerConnection tags that no other connection of this pair uses. Called by the lower of the two
  // ranks.
  Result<int> takeTags(int worldRank);

  // A peer died: MPI_Finalize would wait for it.
  void notePeerFailed() { hasFailedPeer_.store(true); }

  static constexpr int kTagsPerConnection = 8;

 private:
  class Call;
  struct Pair {
    MpiPair* made = nullptr;
    bool isBeingMade = false;
    int numAttempts = 0;
    Status leftBehind;  // why the caller that makes the pair gave up, while MPI still works on it
    int numTagRows = 0;
  };

  MpiProcess(MpiApi* api, bool isPmiOnly) : api_(api), isPmiOnly_(isPmiOnly) {}
  Status initialise(int groupSize, bool isAskedFor, Deadline deadline) SW_REQUIRES(preparing_);
  Status makePair(int worldRank);
  void finaliseAtExit();

  MpiApi* const api_;
  const bool isPmiOnly_;
  std::atomic<bool> hasFailedPeer_{false};
  int owner_ = 0;  // the process that may use MPI, since MPI does not survive a fork
  Mutex preparing_;
  std::shared_ptr<Call> initialising_ SW_GUARDED_BY(preparing_);
  std::shared_ptr<Call> broadcasting_ SW_GUARDED_BY(preparing_);  // not over; null: none
  std::shared_ptr<std::string> broadcast_ SW_GUARDED_BY(preparing_);
  Mutex mutex_;
  ConditionVariable changed_;
  std::map<int, Pair> pairs_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal
