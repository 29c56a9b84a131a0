// Both sides of the fetches of one connection: what this rank exposed and sends when asked, and what it asked for. Long runs go from the
// owner's tensor to the asker's by a message each; short ones the owner packs, and they arrive in the asker's tensor without a further copy
// where they lie one behind the other there. Messages of one direction share a tag: MPI keeps their order, and both ends start them in the
// order of the requests. Threads: as Connection.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

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
  RemoteAddress expose(const void* bytes, std::size_t size);
  void conceal(std::uint32_t space);
  // A request came. kPeerFailed: it is for what is not exposed.
  Status serve(std::string_view body);
  Status sent(const MpiDone& done);

  // Asker's side.
  bool hasRoom() const { return numFetches_ < kMostFetches && !isStopped_; }
  // Posts the receives; appends the requests to be sent, in order. Precondition: hasRoom().
  Status fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count, std::vector<std::string>* requests);
  Status received(const MpiDone& done);

  // No further message starts, and what no peer has answered is given up. Whether none is left in flight.
  bool stop();
  std::size_t numInFlight() const { return numSends_ + numReceives_; }
  // Gives packed memory up for good: MPI may still read it.
  void abandon();

 private:
  static constexpr std::size_t kMostFetches = 32;
  static constexpr std::size_t kMostPacked = 4;
  // Sent and not taken yet. More would let MPI, which answers as it copies, go on and on inside of the asker's look at it.
  static constexpr std::size_t kMostBytesInFlight = kMpiLongestMessage;
  struct Exposure {
    std::uint64_t base = 0;
    std::uint64_t size = 0;
    std::uint32_t numSends = 0;
  };
  // A message that was asked for and did not start yet.
  struct Outgoing {
    std::uint32_t space = 0;
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
  };

  Status checkExposed(const FetchRequest& request, const Exposure* exposure) const;
  Status startSends();
  // A place for a packed message; nothing when all are in flight.
  Packed* freePacked();

  MpiWire* const wire_;
  MpiPair* const pair_;
  const int tag_;
  MpiReceiver* const owner_;
  bool isStopped_ = false;
  std::unordered_map<std::uint32_t, Exposure> exposures_;
  std::uint32_t nextSpace_ = kFirstExposure;
  std::deque<Outgoing> outgoing_;
  std::array<Packed, kMostPacked> packed_;
  std::array<Fetch, kMostFetches> fetches_;
  std::size_t numFetches_ = 0;
  std::size_t numSends_ = 0;
  std::size_t bytesInFlight_ = 0;  // of these
  std::size_t numReceives_ = 0;
  // Kept for their memory.
  std::vector<MpiRun> runs_;
  std::vector<MpiRun> message_;
};

}  // namespace shardwire::internal
