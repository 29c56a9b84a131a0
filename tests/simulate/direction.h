// The state of a link in one direction, from a sender to a receiver: the frames of each lane with their times of
// arrival, the exposed memory of the sender, fetches under way, and the sender's end.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/transport/transport.h"
#include "tests/simulate/clock.h"

namespace shardwire::simulate {

using internal::Lane;

// How a process ended, as seen by the peers.
enum class End : std::uint8_t {
  kNone,
  kLeft,      // normally, behind its last frame
  kDied,      // the kernel hangs up behind the last frame
  kHostDied,  // frames under way are lost, and the peers see silence
};

struct Direction {
  struct Frame {
    std::vector<std::byte> bytes;
    std::uint64_t number = 0;  // in the order of sending, over all lanes
    Time arrives = 0;
  };
  struct LaneQueue {
    std::deque<Frame> frames;
    std::size_t used = 0;  // bytes of frames, until the sender knows of the release
    Time lastArrival = 0;
    Time fullUntil = 0;
    std::vector<std::byte> reserved;
  };
  struct Exposure {
    std::uint32_t space = 0;
    const std::byte* bytes = nullptr;
    std::size_t size = 0;
  };
  // First a request under way to the owner, then at the owner, then parts of the answer under way to the requester.
  struct Fetch {
    std::uint32_t space = 0;
    std::vector<internal::MemoryRun> runs;
    internal::FetchCount* count = nullptr;
    Time arrives = 0;              // at the owner: when the next part leaves
    std::vector<std::byte> bytes;  // of a part, which arrives in pieces
    std::size_t first = 0;         // of the part in the whole answer; at the owner: of the next part
    std::size_t done = 0;          // of the part
    std::uint64_t number = 0;      // of the answer
    Time lastArrival = 0;          // of the parts so far, which keep their order
    bool isLast = true;            // no part follows

    std::size_t size() const;  // of the whole answer
  };

  std::array<LaneQueue, internal::kNumLanes> lanes;
  std::uint64_t lastSent = 0;
  std::uint64_t lastTaken = 0;      // the largest number of a frame that the receiver took
  std::vector<Exposure> exposures;  // of the sender, for the receiver
  std::uint32_t nextSpace = internal::kFirstExposure;
  std::deque<Fetch> requests;  // of the sender, for the receiver's memory
  std::deque<Fetch> serving;   // of the sender's memory, for the receiver: bytes that have not left
  std::deque<Fetch> answers;   // the same: bytes under way
  std::uint64_t lastAnswer = 0;
  Time fetchesFrom = 0;       // before this time the sender has no room for requests
  Time withdrawnAt = kNever;  // from here on the receiver sees that the sender stopped
  bool hasStopped = false;
  std::shared_mutex readers;
  End end = End::kNone;
  Time endSeenAt = kNever;
  // Of a link made when first needed: when the sender's request for the link reaches the receiver, and when the
  // sender's consent does.
  Time requestArrives = kNever;
  Time consentArrives = kNever;
  bool isCut = false;
  std::string broken;
  Time heldUntil = 0;

  Time lastArrival() const;
  // The frames of a connection leave in one stream: all frames sent before an arrived frame arrive, too.
  void loseFramesUnderWay(Time now);
};

inline constexpr std::array<const char*, internal::kNumLanes> kLaneNames = {"control", "bulk", "point"};
// "staged bytes of activity 3".
std::string describeFrame(std::span<const std::byte> frame);

}  // namespace shardwire::simulate
