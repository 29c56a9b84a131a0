// The only interface to MPI: the calls that the transport needs, without <mpi.h>. A separate shared module (module/)
// implements the interface. A process of an MPI job loads the module on first use, so everything else builds and runs
// without MPI.
//
// Threads: any, for MpiApi (MPI runs at MPI_THREAD_MULTIPLE or is not used); one at a time for each MpiOperations. The
// comment of a call says so when the call waits for other ranks. MPI's errors are returned as a Status with MPI's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwire/status.h"

namespace shardwire::internal {

inline constexpr std::uint32_t kMpiApiVersion = 3;
inline constexpr char kMpiModuleEntry[] = "shardwireMpiModule";

// A communicator of this process and one other process. Only this library sends on the communicator.
class MpiPair {
 public:
  virtual ~MpiPair() = default;
};

struct MpiRun {
  std::byte* bytes = nullptr;
  std::size_t size = 0;
};

// Identifies an operation; returned when the operation ends.
struct MpiCookie {
  void* owner = nullptr;
  std::uint16_t kind = 0;
  std::uint16_t lane = 0;
  std::uint32_t index = 0;
};

struct MpiDone {
  MpiCookie cookie;
  std::size_t bytes = 0;  // received, or sent
  bool isCancelled = false;
  std::string error;  // MPI's text; empty: no error
};

// Messages in flight, of the connections of one group. The memory of a message must stay valid until the message is
// done.
class MpiOperations {
 public:
  virtual ~MpiOperations() = default;
  // One message, without a copy here. At most 2^31 - 1 bytes. The runs to be filled are in order.
  virtual Status send(MpiPair& pair, int tag, const MpiRun& run, const MpiCookie& cookie) = 0;
  virtual Status receive(MpiPair& pair, int tag, std::span<const MpiRun> runs, const MpiCookie& cookie) = 0;
  // Lets MPI make progress, and appends the finished operations.
  virtual Status poll(std::vector<MpiDone>* done) = 0;
  // Asks MPI to cancel the owner's receives of this kind that have no message yet. Cancelled receives end in poll().
  virtual void cancelReceives(const void* owner, std::uint16_t kind) = 0;
  // Before the owner is destroyed: the owner's operations in flight will end with a cookie without owner.
  virtual void forget(const void* owner) = 0;
};

struct MpiState {
  bool isInitialised = false;
  bool isFinalised = false;
  bool isThreadMultiple = false;  // once initialised
  const char* threadLevel = "";   // "MPI_THREAD_SERIALIZED"
  int rank = 0;                   // in the world, once initialised
  int size = 0;
};

class MpiApi {
 public:
  virtual ~MpiApi() = default;
  virtual std::string library() const = 0;  // "Open MPI v4.1.4"
  virtual MpiState state() const = 0;
  // Collective over the MPI world; waits for all ranks.
  virtual Status initialise() = 0;
  // As initialise(). Only for the process whose initialise() initialised MPI.
  virtual void finalise() = 0;
  virtual int mostTag() const = 0;
  // Collective over the two processes; waits for the other one. The pair lives until MPI is finalised.
  virtual Result<MpiPair*> makePair(int worldRank) = 0;
  virtual std::unique_ptr<MpiOperations> makeOperations() = 0;
  // Sends world rank 0's bytes to all ranks of the MPI world. Collective over the world; waits for all ranks.
  virtual Status broadcast(std::string* bytes) = 0;
};

// The module's exported function. Returns the process's only MpiApi, or null when the versions differ.
using MpiModuleEntry = MpiApi* (*)(std::uint32_t version);

}  // namespace shardwire::internal
