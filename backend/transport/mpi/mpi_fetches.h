// Both sides of the fetches of one connection: what this rank exposed and sends when asked, and what it asked for. Long runs go from the
// owner's tensor to the asker's by a message each; short ones the owner packs, and they arrive in the asker's tensor without a further copy
// where they lie one behind the other there. Messages of one direction share a tag: MPI keeps their order, and both ends start them in the
// order of the requests.
//
// MPI reads a long run from the owner's tensor whenever it gets to it, perhaps after the owner has given up and its caller has the tensor
// back: such a message cannot be recalled. So the owner counts the requests for long runs whose messages had all left its tensors while it
// had not stopped, and tells the asker that count; a fetch with long runs ends once its bytes are there and the count says so. Packed
// messages need none of this. Threads: as Connection.
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
  // Cookies of its messages have these kinds.
  static constexpr std::uint16_t kSendKind = 100;
  static constexpr std::uint16_t kReceiveKind = 101;

  // `owner`: whose cookies they are; hands what is done to sent() and received().
  MpiFetches(MpiWire* wire, MpiPair* pair, int tag, MpiReceiver* owner) : wire_(wire), pair_(pair), tag_(tag), owner_(owner) {}

  // Owner's side.
  RemoteAddress expose(const void* bytes, std::size_t size) { return exposed_.expose(bytes, size); }
  // Its reader is through with it, and had this rank's word by then that no message from it is under way.
  void conceal(std::uint32_t space) { exposed_.conceal(space); }
  // A request came. kPeerFailed: it is for what is not exposed.
  Status serve(std::string_view body);
  Status sent(const MpiDone& done);
  // How many of the peer's requests for long runs are over, in their order. None is added once this side has stopped.
  std::uint64_t numConfirmed() const { return numConfirmed_; }

  // Asker's side.
  bool hasRoom() const { return numFetches_ < kMostFetches && !isStopped_; }
  // Posts the receives; appends the requests to be sent, in order. Precondition: hasRoom().
  Status fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count, std::vector<std::string>* requests);
  Status received(const MpiDone& done);
  // The peer's numConfirmed(), modulo MpiHead::kConfirmedModulo. False: it cannot be.
  bool confirmedByPeer(std::uint32_t total);

  // No further message starts, and what no peer has answered is given up. Whether none is left in flight; may be asked again.
  bool stop();
  std::size_t numInFlight() const { return numSends_ + numReceives_; }
  // Gives packed memory up for good: MPI may still read it.
  void abandon();

 private:
  static constexpr std::size_t kMostFetches = 32;
  static constexpr std::size_t kMostPacked = 4;
  // Sent and not taken yet. More would let MPI, which answers as it copies, go on and on inside of the asker's look at it.
  static constexpr std::size_t kMostBytesInFlight = kMpiLongestMessage;
  // A message that was asked for and did not start yet.
  struct Outgoing {
    std::uint32_t space = 0;
    std::uint64_t request = 0;  // its number among those for long runs; anything for a message that is packed
    std::vector<MpiRun> runs;
  };
  struct Packed {
    std::unique_ptr<std::byte[]> bytes;
    bool isInFlight = false;
  };
  struct Fetch {
    FetchCount* count = nullptr;  // null: the place is free
    std::uint32_t numMessages = 0;
    std::uint64_t bytes = 0;
    std::uint64_t confirmedAt = 0;  // the owner's count that ends it; 0: it has no long runs
  };

  Status startSends();
  void endIfOver(Fetch& fetch);
  // A place for a packed message; nothing when all are in flight.
  Packed* freePacked();

  MpiWire* const wire_;
  MpiPair* const pair_;
  const int tag_;
  MpiReceiver* const owner_;
  bool isStopped_ = false;
  ExposedMemory exposed_;
  std::deque<Outgoing> outgoing_;
  std::array<Packed, kMostPacked> packed_;
  std::uint64_t numConfirmed_ = 0;
  std::deque<std::uint32_t> unconfirmed_;  // of each later request for long runs: messages that have not left this rank's tensors
  std::array<Fetch, kMostFetches> fetches_;
  std::size_t numFetches_ = 0;
  std::uint64_t numLongAsked_ = 0;  // requests for long runs
  std::uint64_t numConfirmedByPeer_ = 0;
  std::size_t numSends_ = 0;
  std::size_t bytesInFlight_ = 0;  // of these
  std::size_t numReceives_ = 0;
  // Kept for their memory.
  std::vector<MpiRun> runs_;
  std::vector<MpiRun> message_;
};

}  // namespace shardwire::internal
