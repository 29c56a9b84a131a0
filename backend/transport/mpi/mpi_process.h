// MPI in this process: the module that knows it, whether it may be used, its initialisation and end, and one private communicator for each
// process that we talk to. There is one MPI per process, so there is one of these. Any thread.
//
// Communicators. MPI's own messages must never match ours, so MPI_COMM_WORLD cannot be used; a duplicate of it is collective over the
// world, and a group of some ranks could never make it; one communicator per group would have to be made by ranks whose sets of MPI peers
// differ (the others are reached by shared memory). So each pair of processes that meets makes one communicator of the two
// (MPI_Comm_create_group), once; groups that share the pair keep apart by tags.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>

#include "backend/base/mutex.h"
#include "backend/transport/mpi/mpi_api.h"
#include "backend/transport/mpi/mpi_launch.h"

namespace shardwire::internal {

class MpiProcess {
 public:
  // Loads the module on first use. kUnsupported, saying why, where no MPI job is in sight, or the module or MPI is missing.
  static Result<MpiProcess*> instance();

  // MPI is ready after this: it was, or all of its world initialises it now (then `groupSize` must be the world's, or some would never
  // come; kWholeWorld when they all will). isAskedFor: even if all of the world is on this host. kUnsupported, saying what to do, when MPI
  // cannot be used: too low a thread level, a fork of another process that uses it.
  static constexpr int kWholeWorld = 0;
  Status prepare(int groupSize, bool isAskedFor, Deadline deadline);

  MpiApi& api() { return *api_; }
  MpiState state() const { return api_->state(); }
  // Names the job among others.
  std::string job() const;

  // The pair of this process and that one; made on first use, while the other does the same. `isWanted` false ends the wait early. Where an
  // earlier call gave up and MPI is still at it, this call waits a few seconds and then fails with the reason of the first.
  Result<MpiPair*> pairWith(int worldRank, const std::function<bool()>& isWanted, Deadline deadline);
  // A row of kTagsPerConnection tags that no other connection of this pair uses, for the lower of the two ranks to hand out.
  Result<int> takeTags(int worldRank);

  // A peer died: MPI_Finalize would wait for it.
  void notePeerFailed() { hasFailedPeer_.store(true); }

  static constexpr int kTagsPerConnection = 8;

 private:
  struct Pair {
    MpiPair* made = nullptr;
    bool isBeingMade = false;
    int numAttempts = 0;
    Status leftBehind;  // why the caller that makes the pair gave up, while MPI still works on it
    int numTagRows = 0;
  };

  MpiProcess(MpiApi* api, bool isPmiOnly) : api_(api), isPmiOnly_(isPmiOnly) {}
  Status initialise(int groupSize, bool isAskedFor, Deadline deadline);
  void finaliseAtExit();

  MpiApi* const api_;
  const bool isPmiOnly_;
  std::atomic<bool> hasFailedPeer_{false};
  int owner_ = 0;  // the process that may use MPI: it does not survive a fork
  Mutex preparing_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::map<int, Pair> pairs_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal
