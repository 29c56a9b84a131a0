// The one door to MPI: what the transport needs of it, without <mpi.h>. Implemented by a small shared module of its own (module/), which is
// loaded when a process of an MPI job first wants it, so that everything else builds and runs where there is no MPI.
//
// Threads: any, for MpiApi (MPI runs at MPI_THREAD_MULTIPLE or is not used); one at a time for each MpiOperations. Calls that wait for
// other ranks say so. Whatever MPI reports as an error is a Status with MPI's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwire/status.h"

namespace shardwire::internal {

inline constexpr std::uint32_t kMpiApiVersion = 2;
inline constexpr char kMpiModuleEntry[] = "shardwireMpiModule";

// A communicator of this process and one other, on which nobody but this library sends.
class MpiPair {
 public:
  virtual ~MpiPair() = default;
};

struct MpiRun {
  std::byte* bytes = nullptr;
  std::size_t size = 0;
};

// Given back when an operation ends: whose it was, and which.
struct MpiCookie {
  void* owner = nullptr;
  std::uint16_t kind = 0;
  std::uint16_t lane = 0;
  std::uint32_t index = 0;
};

struct MpiDone {
  MpiCookie cookie;
  std::size_t bytes = 0;  // that were received, or sent
  bool isCancelled = false;
  std::string error;  // MPI's text; empty: it went well
};

// Messages in flight, of the connections of one group. The memory of a message stays where it is until the message is done.
class MpiOperations {
 public:
  virtual ~MpiOperations() = default;
  // One message of the runs' bytes, in their order; no copy is made here. At most 2^31 - 1 bytes in all.
  virtual Status send(MpiPair& pair, int tag, std::span<const MpiRun> runs, const MpiCookie& cookie) = 0;
  virtual Status receive(MpiPair& pair, int tag, std::span<const MpiRun> runs, const MpiCookie& cookie) = 0;
  // Lets MPI work; appends what is done.
  virtual Status poll(std::vector<MpiDone>* done) = 0;
  // Asks MPI to give up the owner's receives of this kind that no message has reached yet; they end in poll(), as cancelled.
  virtual void cancelReceives(const void* owner, std::uint16_t kind) = 0;
  // The owner goes: what is still in flight ends with a cookie without owner.
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
  // Collective over the MPI world, waits for all of it.
  virtual Status initialise() = 0;
  // As initialise(). Only by who initialised.
  virtual void finalise() = 0;
  virtual int mostTag() const = 0;
  // Collective over the two; waits for the other. The pair lives until MPI is finalised.
  virtual Result<MpiPair*> makePair(int worldRank) = 0;
  virtual std::unique_ptr<MpiOperations> makeOperations() = 0;
  // World rank 0's bytes to all ranks of the world. Collective over it, waits for them.
  virtual Status broadcast(std::string* bytes) = 0;
};

// What the module exports: its api, one for the process; null when the versions differ.
using MpiModuleEntry = MpiApi* (*)(std::uint32_t version);

}  // namespace shardwire::internal
