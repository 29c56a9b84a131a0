// The lanes of a connection over one TCP stream, both ways. Each lane is a ring of frames (frame_ring.h) at the sender
// and a ring of the same length at the receiver. The stream makes the receiver's ring a copy of the sender's ring, byte
// for byte and place for place. The sender reuses bytes of its ring when the receiver reports their release (credit).
// So all bytes under way always fit, the receiver never stops reading, and a full lane delays no other lane.
//
//   unit    type u8 | lane or kind u8 | flags u8 | 0 u8 | bytes u32        (little-endian)
//   frames  then `bytes` of the lane's ring: whole frames, or a part of a long frame (flag kMore: the frame continues
//           in the lane's next unit)
//   skip    `bytes` at the end of the lane's ring hold nothing and are not sent
//   credit  `bytes` more of the lane were released
//   note    then `bytes` of a note of this kind: a message between the two ends of the connection outside the lanes
//
// With checksums each header continues: CRC-32C of the payload u32 | CRC-32C of the header's first 12 bytes u32. The
// second continues the second of the unit before, so a lost or repeated unit is noticed, too. A header is used, and a
// payload becomes visible, only after the comparison.
//
// One thread at a time. Nothing blocks.
#pragma once

#include <sys/uio.h>

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/transport/frame_ring.h"
#include "backend/transport/tcp/tcp_stream.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

enum class UnitType : std::uint8_t { kFrames = 1, kSkip = 2, kCredit = 3, kNote = 4 };
inline constexpr std::size_t kUnitHeaderBytes = 8;
inline constexpr std::size_t kCheckedHeaderBytes = 16;
inline constexpr std::uint8_t kMore = 1;
inline constexpr std::size_t kMaxNoteBytes = (std::size_t{1} << 20) + 64;

struct StreamNote {
  std::uint8_t kind = 0;
  std::string bytes;
};

class FrameStream {
 public:
  // Lane capacities as returned by laneCapacities(): equal on both ends. hasChecksums: also equal on both ends.
  FrameStream(TcpStream stream, const std::array<std::uint64_t, kNumLanes>& capacities, bool hasChecksums = false);

  RingWriter& writer(Lane lane) { return lanes_[indexOf(lane)].writer; }
  RingReader& reader(Lane lane) { return lanes_[indexOf(lane)].reader; }
  const TcpStream& stream() const { return stream_; }
  const Fd& socket() const { return stream_.socket(); }

  // Queues a note. Notes are sent before staged payload, and after units that are already being sent.
  void sendNote(std::uint8_t kind, std::string bytes) { notesOut_.push_back({kind, std::move(bytes)}); }
  // Notes that arrived; the caller removes them.
  std::deque<StreamNote>& notesIn() { return notesIn_; }
  // A lane has released enough bytes since its last credit that the next credit is due.
  bool owesCredit() const;

  // Sends as much as the socket takes, up to a limit. *moved: something was sent. Errors: the system broke the stream.
  Status flush(bool* moved);
  // flush() stopped because the socket takes no more.
  bool isBlocked() const { return isBlocked_; }
  // Receives available bytes, up to a limit. The end of the stream is no error: see isEnded(). Errors: the system broke
  // the stream, the peer sent a malformed unit, or bytes were changed on the way. The stream is then over.
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
    std::uint64_t frameEnd = 0;  // end of the frames that are being sent; sent <= frameEnd
    std::uint64_t arrived = 0;   // in.written plus the parts of an incomplete frame
    std::uint64_t credited = 0;  // of in.released
    RingWriter writer;
    RingReader reader;

    // Bytes of the next frames, up to a skip, the ring's end or about a unit's length.
    std::size_t unsentFrames() const;
  };
  // Units that one system call sends.
  struct Batch {
    static constexpr std::size_t kMaxUnits = 32;
    std::array<iovec, 2 * kMaxUnits> pieces;
    std::array<std::array<std::byte, kCheckedHeaderBytes>, kMaxUnits> headers;
    bool hasChecksums = false;
    std::uint32_t headerSum = 0;  // of the last header
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
    std::size_t bytes = 0;    // of its payload
    std::size_t missing = 0;  // of its payload
    std::uint32_t sum = 0;    // of its payload, from the header
  };

  void fillBatch();
  void addFrames(Lane lane);
  void addCredit(Lane lane);
  // Parses the staged bytes. The bytes left at the end are part of a unit's header.
  Status parse();
  Status beginUnit(const std::byte* header);
  Status beginLaneUnit(LaneState& lane, std::size_t bytes);
  Status checkHeader(const std::byte* header);
  Status checkPayload() const;
  Status endUnit();
  std::byte* placeInLane();
  void take(std::size_t bytes);

  TcpStream stream_;
  std::array<LaneState, kNumLanes> lanes_;
  std::deque<StreamNote> notesOut_;
  std::deque<StreamNote> notesIn_;
  Batch batch_;
  bool isBlocked_ = false;

  const bool hasChecksums_;
  std::uint32_t headerSumIn_ = 0;  // of the last header
  std::vector<std::byte> staged_;  // received, not parsed: [stagedFrom_, stagedTo_)
  std::size_t stagedFrom_ = 0;
  std::size_t stagedTo_ = 0;
  UnitIn unit_;
  bool inUnit_ = false;
  StreamNote noteIn_;
  bool isEnded_ = false;
};

}  // namespace shardwire::internal
