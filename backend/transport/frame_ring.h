// A ring of frames in memory with one writer and one reader: in one process or two, or on two hosts, where a wire keeps
// a copy of the ring at either end (tcp, rdma). Frames are contiguous: the writer packs straight into the ring and the
// reader uses the frame in place.
//
//   written                          the words below count bytes since the beginning; position = count modulo capacity
//   released                         released <= written <= released + capacity
//   [length, kind | payload, padded] ...
//   a frame that would not fit before the end is preceded by a skip marker
//
// The writer publishes a frame in one of two ways (Publish). Each end checks the other's words before use, to catch
// bugs. RingWriter and RingReader are used by one thread at a time each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/transport/lanes.h"

namespace shardwire::internal {

// The words shared by both ends. The writer stores the first line and the reader the second, except that the reader
// clears `awaitsRoom`.
struct RingWords {
  alignas(64) std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> awaitsRoom;  // 1: a reservation failed; the next release() must ring the writer's bell
  alignas(64) std::atomic<std::uint64_t> released;
};

struct RingHeader {
  std::uint32_t bytes;  // of the payload
  std::uint32_t kind;   // kFrame or kSkip
};
inline constexpr std::uint32_t kFrame = 0x4d415246;  // "FRAM": a wrong word is hardly ever taken for a header
inline constexpr std::uint32_t kSkip = 0x50494b53;   // "SKIP"

// How a frame becomes visible to the reader.
enum class Publish : std::uint8_t {
  // The writer stores `written`. For wires, whose streams copy whole parts of the ring. Frames begin at multiples of 8
  // bytes.
  kCount,
  // The writer stores the frame's header last, and behind each frame an empty header, at which the reader polls. For
  // memory that both ends share: a short frame then needs the transfer of one cache line instead of two. Frames begin
  // at multiples of 64 bytes, the ring's memory is zero at first, and `written` is not used.
  kHeader,
};

constexpr std::size_t alignmentOf(Publish by) {
  return by == Publish::kHeader ? 64 : 8;
}

static_assert(maxLaneFrameBytes(1024) == 1024 / 4 - sizeof(RingHeader));

class RingWriter {
 public:
  RingWriter() = default;
  // `capacity` is a power of two, at least 64, or 512 with kHeader; `data` is aligned as the frames are. The ring is
  // new: nothing written yet.
  // `rewindFrom`: a frame of up to 2 KiB that would begin a page behind this position goes to the beginning of the ring
  // if the reader has released everything. A frame of up to 32 KiB does so, too, if noteAnswer() was called in this
  // round, and all other frames do so behind four times this position. So most rings have few pages, and few page
  // faults. At least 2 KiB; 0: never.
  RingWriter(RingWords* words, std::byte* data, std::size_t capacity, Publish by, std::size_t rewindFrom = 0)
      : words_(words),
        data_(data),
        capacity_(capacity),
        rewindFrom_(rewindFrom),
        alignment_(alignmentOf(by)),
        by_(by) {}

  // See Connection. Empty: no room now, and the reader's next release() reports that this writer awaits room.
  std::span<std::byte> reserve(std::size_t minBytes, std::size_t maxBytes);
  // Publishes the frame; 0 gives the reservation back. Sequentially consistent with the reader's look: see
  // ringIfArmed().
  void commit(std::size_t bytes);
  // The reader of this ring wrote a frame to this process.
  void noteAnswer() { isAnswered_ = true; }
  // The reader stored an impossible count.
  bool isBroken() const { return broken_; }

 private:
  bool readReleased();
  bool findRoom(std::size_t least);
  bool canRewind(std::size_t position, std::size_t frameBytes);
  void emptyHeaderBehind(std::uint64_t frameEnd);
  void publish(std::size_t position, std::size_t bytes);
  void fetchLinesOfNext(std::size_t frameBytes) const;
  std::size_t room() const;
  std::span<std::byte> reserveSlowly(std::size_t minBytes, std::size_t maxBytes);

  RingWords* words_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t rewindFrom_ = 0;
  std::size_t alignment_ = alignmentOf(Publish::kCount);
  std::uint64_t written_ = 0;   // as published
  std::uint64_t released_ = 0;  // the reader's count as last read
  std::uint64_t emptied_ = 0;   // the latest empty header, as a count of bytes
  // A short frame that ends at or before this count has room behind the frame before, in the same page.
  std::uint64_t roomUntil_ = 0;
  std::size_t skip_ = 0;      // bytes before the reservation covered by the skip marker
  std::size_t reserved_ = 0;  // payload bytes of the reservation; 0: none
  Publish by_ = Publish::kCount;
  bool isAnswered_ = false;  // since the ring began anew
  bool broken_ = false;
};

class RingReader {
 public:
  RingReader() = default;
  RingReader(RingWords* words, const std::byte* data, std::size_t capacity, Publish by)
      : words_(words), data_(data), capacity_(capacity), alignment_(alignmentOf(by)), by_(by) {}

  // The oldest frame, or empty.
  std::span<const std::byte> peek();
  // Gives the frame that peek() returned back to the writer. Returns whether the writer awaits room: a writer that does
  // not is busy with other work, and a ring of its bell would only interrupt this work. Sequentially consistent with
  // the writer's look: see ringIfArmed().
  bool release();
  // The writer stored an impossible count or length.
  bool isBroken() const { return broken_; }

 private:
  bool readWritten();

  RingWords* words_ = nullptr;
  const std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t alignment_ = alignmentOf(Publish::kCount);
  std::uint64_t released_ = 0;  // counts skipped bytes as soon as they are seen; published by release()
  std::uint64_t written_ = 0;   // the writer's count as last read
  std::size_t frameBytes_ = 0;  // of the peeked frame with header and padding; 0: none peeked
  Publish by_ = Publish::kCount;
  bool broken_ = false;
};

}  // namespace shardwire::internal
