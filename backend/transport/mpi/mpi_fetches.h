// Both sides of the fetches of one connection: memory that this rank exposes and sends on request (owner), and memory
// that this rank fetches (asker). Each long run is one message, from the owner's tensor to the asker's tensor. The
// owner packs short runs; in the asker's tensor, adjacent short runs arrive without a further copy. Messages of one
// direction share a tag: MPI keeps the order of messages, and both ends start messages in the order of the requests.
//
// MPI may read a long run from the owner's tensor at any time, perhaps after the owner has stopped and the caller has
// the tensor back, and the message cannot be recalled. So the owner counts the requests for long runs whose messages
// have all left the tensors before the owner stopped, and reports the count to the asker. A fetch with long runs ends
// when its bytes have arrived and the count covers its requests. Packed messages need no count. Threads: as Connection.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/transport/exposed_memory.h"
#include "backend/transport/mpi/mpi_message.h"
#include "backend/transport/mpi/mpi_wire.h"

namespace shardwire::internal {

class MpiFetches {
 public:
  // The kinds in the cookies of fetch messages.
  static constexpr std::uint16_t kSendKind = 100;
  static constexpr std::uint16_t kReceiveKind = 101;
  // Runs of all fetches under way. A single fetch may have more. Each run costs memory on both ends.
  static constexpr std::size_t kMostAskedRuns = std::size_t{1} << 22;

  // `owner`: the owner in the cookies; passes finished messages to sent() and received().
  MpiFetches(MpiWire* wire, MpiPair* pair, int tag, MpiReceiver* owner)
      : wire_(wire), pair_(pair), tag_(tag), owner_(owner) {}

  // Owner's side.
  RemoteAddress expose(const void* bytes, std::size_t size) { return exposed_.expose(bytes, size); }
  // Precondition: the peer's fetches from this space have ended, so no message from this memory is under way.
  void conceal(std::uint32_t space) { exposed_.conceal(space); }
  // Takes a request. kPeerFailed: the request is malformed, or names memory that is not exposed.
  Status serve(std::string_view body);
  Status sent(const MpiDone& done);
  // Number of the peer's requests for long runs that are finished, counted in order. Constant after this side has
  // stopped.
  std::uint64_t numConfirmed() const { return numConfirmed_; }

  // Asker's side.
  bool hasRoom(std::size_t numRuns) const {
    return numFetches_ < kMostFetches && !isStopped_ && (numFetches_ == 0 || numAskedRuns_ + numRuns <= kMostAskedRuns);
  }
  // Posts the first receives; appends the requests to be sent, in order. Precondition: hasRoom(runs.size()), and as
  // PeerFetches::fetch().
  Status fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count,
               std::vector<std::string>* requests);
  Status received(const MpiDone& done);
  // `total`: the peer's numConfirmed(), modulo MpiHead::kConfirmedModulo. False: more than this rank requested.
  bool confirmedByPeer(std::uint32_t total);

  // Starts no further message, and cancels receives that have no message yet. True: no message is in flight. May be
  // called again.
  bool stop();
  std::size_t numInFlight() const { return numSends_ + numReceives_; }
  // Leaks the packed memory that MPI may still read.
  void abandon();

 private:
  static constexpr std::size_t kMostFetches = 32;
  static constexpr std::size_t kMostPacked = 4;
  // Limit of requested runs that are not sent yet, in pieces of one message at most. The limit bounds this rank's
  // memory. Honest peers stay below: a fetch has 4 MiB where it has runs of one byte (kCopySegment).
  static constexpr std::size_t kMostServedRuns = 2 * kMostAskedRuns;
  // Most bytes of the sends in flight.
  static constexpr std::size_t kMostBytesInFlight = kMpiLongestMessage;
  // Most bytes of the posted receives, and so of the bytes that one poll of the asker receives: the owner's MPI sends
  // while the asker's MPI copies, and a poll that has a receive for each message may take all of them.
  static constexpr std::size_t kMostBytesPosted = 2 * kMostBytesInFlight;
  // A requested message that was not started yet.
  struct Outgoing {
    std::uint32_t space = 0;
    std::uint64_t request = 0;  // number of the request among the requests for long runs; unused for a packed message
    std::vector<MpiRun> runs;
  };
  // A message of a fetch that has no receive yet.
  struct Incoming {
    std::uint32_t fetch = 0;  // index
    std::vector<MpiRun> runs;
  };
  struct Packed {
    std::unique_ptr<std::byte[]> bytes;
    bool isInFlight = false;
  };
  struct Fetch {
    FetchCount* count = nullptr;  // null: the place is free
    std::size_t numRuns = 0;
    std::uint32_t numMessages = 0;  // that have not arrived
    std::uint64_t bytes = 0;
    std::uint64_t confirmedAt = 0;  // the owner's count that ends the fetch; 0: there are no long runs
  };

  Status takeRuns(const FetchRequest& request);
  Status startSends();
  Status startReceives();
  void endIfOver(Fetch& fetch);
  // A buffer for a packed message; null when all buffers are in flight.
  Packed* freePacked();

  MpiWire* const wire_;
  MpiPair* const pair_;
  const int tag_;
  MpiReceiver* const owner_;
  bool isStopped_ = false;
  ExposedMemory exposed_;
  std::deque<Outgoing> outgoing_;
  std::size_t numServedRuns_ = 0;  // of outgoing_, until stop()
  std::array<Packed, kMostPacked> packed_;
  std::uint64_t numConfirmed_ = 0;
  // For each later request for long runs: the number of messages that have not left this rank's tensors.
  std::deque<std::uint32_t> unconfirmed_;
  std::array<Fetch, kMostFetches> fetches_;
  std::size_t numFetches_ = 0;
  std::size_t numAskedRuns_ = 0;    // of these fetches
  std::uint64_t numLongAsked_ = 0;  // requests for long runs
  std::uint64_t numConfirmedByPeer_ = 0;
  std::size_t numSends_ = 0;
  std::size_t bytesInFlight_ = 0;  // bytes of these sends
  std::deque<Incoming> incoming_;
  std::size_t numReceives_ = 0;
  std::size_t bytesPosted_ = 0;  // bytes of these receives
  // Scratch, kept to reuse the memory.
  std::vector<MpiRun> runs_;
  std::vector<MpiRun> message_;
};

}  // namespace shardwire::internal
