// A ring of frames in shared memory, with the peer's words and the peer's bytes in the ring: the reader, and a writer
// whose frames the peer releases as it likes.
#include <array>

#include "backend/base/wire.h"
#include "backend/transport/frame_ring.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

constexpr std::size_t kCapacity = 512;
constexpr int kFramesOfPoll = 64;

struct Ring {
  RingWords words{};
  alignas(64) std::array<std::byte, kCapacity> data{};
};

void fill(Ring& ring, std::string_view bytes) {
  const auto all = std::as_bytes(std::span(bytes.data(), std::min(bytes.size(), kCapacity)));
  std::copy(all.begin(), all.end(), ring.data.begin());
}

void play(std::string_view input, Publish by) {
  Ring in;
  Ring out;
  RingReader reader(&in.words, in.data.data(), kCapacity, by);
  RingWriter writer(&out.words, out.data.data(), kCapacity, by);
  for (const std::string& part : splitParts(input, 8)) {
    ByteReader words(part);
    in.words.written += words.fixed<std::uint16_t>();
    out.words.released += words.fixed<std::uint16_t>();
    const std::size_t wanted = 1 + words.u8() % maxLaneFrameBytes(kCapacity);
    fill(in, words.rest());
    // The headers of a foreign writer can go round the ring: a poll takes a limited number of frames.
    auto frame = reader.peek();
    for (int i = 0; i < kFramesOfPoll && !frame.empty(); ++i, frame = reader.peek()) {
      const std::vector<std::byte> copy(frame.begin(), frame.end());
      reader.release();
    }
    const auto room = writer.reserve(wanted, wanted);
    std::fill(room.begin(), room.end(), std::byte{1});
    if (!room.empty()) {
      writer.commit(wanted);
    }
  }
}

}  // namespace

void parse(std::string_view input) {
  play(input, Publish::kCount);
  play(input, Publish::kHeader);
}

std::vector<std::string> seeds() {
  Ring ring;
  RingWriter writer(&ring.words, ring.data.data(), kCapacity, Publish::kCount);
  RingReader reader(&ring.words, ring.data.data(), kCapacity, Publish::kCount);
  std::vector<std::string> parts;
  for (const std::size_t bytes : {8, 40, 56, 40, 56, 20}) {
    const std::uint64_t before = ring.words.written;
    const auto room = writer.reserve(bytes, bytes);
    std::fill(room.begin(), room.end(), std::byte{7});
    writer.commit(bytes);
    static_cast<void>(reader.peek());
    reader.release();
    ByteWriter part;
    part.fixed(static_cast<std::uint16_t>(ring.words.written - before));
    part.fixed(static_cast<std::uint16_t>(parts.empty() ? 0 : 48));
    part.u8(static_cast<std::uint8_t>(bytes - 1));
    parts.push_back(part.take() + std::string(reinterpret_cast<const char*>(ring.data.data()), kCapacity));
  }
  return {joinParts(parts), joinParts({parts[0]})};
}

}  // namespace shardwire::fuzz
