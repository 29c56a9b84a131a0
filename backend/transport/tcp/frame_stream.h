// The lanes of a connection over one TCP stream, both ways. Each lane is a ring of frames (frame_ring.h) at the sender and one of the
// same length at the receiver; the stream makes the second a copy of the first, byte for byte and place for place. The sender reuses its
// ring's bytes when the receiver says that it released them (credit), so what is under way always fits, the receiver never stops reading,
// and a full lane holds up no other.
//
//   unit    type u8 | lane or kind u8 | flags u8 | 0 u8 | bytes u32        (little-endian)
//   frames  then `bytes` of the lane's ring: whole frames, or a part of a long one (flag kMore: it goes on in the lane's next unit)
//   skip    `bytes` at the end of the lane's ring hold nothing; they do not travel
//   credit  `bytes` more of the lane were released
//   note    then `bytes` of a note of this kind: what the two ends of the connection tell each other beside the lanes
//
// One thread at a time. Nothing blocks.
#pragma once

#include <sys/uio.h>

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/transport/frame_ring.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

enum class UnitType : std::uint8_t { kFrames = 1, kSkip = 2, kCredit = 3, kNote = 4 };
inline constexpr std::size_t kUnitHeaderBytes = 8;
inline constexpr std::uint8_t kMore = 1;
inline constexpr std::size_t kMaxNoteBytes = (std::size_t{1} << 20) + 64;

struct StreamNote {
  std::uint8_t kind = 0;
  std::string bytes;
};

class FrameStream {
 public:
  // Lane capacities as laneCapacities() gives them: equal on both ends.
  FrameStream(Fd socket, const std::array<std::uint64_t, kNumLanes>& capacities);

  RingWriter& writer(Lane lane) { return lanes_[static_cast<std::size_t>(lane)].writer; }
  RingReader& reader(Lane lane) { return lanes_[static_cast<std::size_t>(lane)].reader; }
  const Fd& socket() const { return socket_; }

  // Notes go before staged payload, and after what is already being sent.
  void tell(std::uint8_t kind, std::string bytes) { notesOut_.push_back({kind, std::move(bytes)}); }
  std::size_t numNotesWaiting() const { return notesOut_.size(); }
  // Those that arrived; the caller takes them out.
  std::deque<StreamNote>& notesIn() { return notesIn_; }
  // So much was released since the peer was last told that it should be told now.
  bool owesCredit() const;

  // Sends as far as that goes. *moved: something left. Errors: the stream is broken, by the system or by what the peer sent.
  Status flush(bool* moved);
  // flush() stopped because the socket takes no more.
  bool isBlocked() const { return isBlocked_; }
  // Receives what is there, up to a limit. The end of the stream is no error: see isEnded().
  Status receive(bool* moved);
  bool isEnded() const { return isEnded_; }

 private:
  struct LaneState {
    std::unique_ptr<std::byte[]> outBytes;
    std::unique_ptr<std::byte[]> inBytes;
    RingWords out{};  // written by the writer, released by the peer's credits
    RingWords in{};   // written by the stream, released by the reader
    std::size_t capacity = 0;
    std::uint64_t sent = 0;      // of out.written
    std::uint64_t frameEnd = 0;  // where the frame ends that is sent in parts; sent <= frameEnd
    std::uint64_t arrived = 0;   // in.written plus the parts of a frame that is not whole yet
    std::uint64_t credited = 0;  // of in.released
    RingWriter writer;
    RingReader reader;

    // Bytes of the frames that come next, up to a skip, the ring's end or about a unit's length.
    std::size_t unsentFrames() const;
  };
  // Units on their way out, in one system call.
  struct Batch {
    static constexpr std::size_t kMaxUnits = 32;
    std::array<iovec, 2 * kMaxUnits> pieces;
    std::array<std::array<std::byte, kUnitHeaderBytes>, kMaxUnits> headers;
    std::size_t numUnits = 0;
    std::size_t numPieces = 0;
    std::size_t nextPiece = 0;
    std::size_t numNotes = 0;
    std::size_t bytes = 0;

    bool isFull() const;
    void add(UnitType type, std::uint8_t tag, std::uint8_t flags, std::size_t unitBytes, const void* payload);
    void advance(std::size_t sentBytes);
  };
  struct UnitIn {
    UnitType type = UnitType::kCredit;
    std::uint8_t tag = 0;
    std::uint8_t flags = 0;
    std::size_t missing = 0;  // of its payload
  };

  void fillBatch();
  void addFrames(Lane lane);
  void addCredit(Lane lane);
  // Takes received bytes; what is left at the end is part of a unit's header.
  Status parse();
  Status beginUnit(const std::byte* header);
  Status beginLaneUnit(LaneState& lane, std::size_t bytes);
  void endUnit();
  std::byte* placeInLane();
  void take(std::size_t bytes);

  Fd socket_;
  std::array<LaneState, kNumLanes> lanes_;
  std::deque<StreamNote> notesOut_;
  std::deque<StreamNote> notesIn_;
  Batch batch_;
  bool isBlocked_ = false;

  std::vector<std::byte> staged_;  // received, not parsed: [stagedFrom_, stagedTo_)
  std::size_t stagedFrom_ = 0;
  std::size_t stagedTo_ = 0;
  UnitIn unit_;
  bool inUnit_ = false;
  StreamNote noteIn_;
  bool isEnded_ = false;
};

}  // namespace shardwire::internal
