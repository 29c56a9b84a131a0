// A peer's bytes on both streams of a tcp connection: units, notes and the requests for exposed memory in the notes,
// and fetched bytes. The first byte of an input chooses the stream, whether the connection has checksums, whether the
// input gets right checksums, and the lengths of the pieces in which the bytes arrive.
#include <sanitizer/asan_interface.h>
#include <sys/socket.h>

#include <cstring>

#include "backend/base/crc32c.h"
#include "backend/base/wire.h"
#include "backend/fabric/link_message.h"
#include "backend/transport/tcp/fetch_stream.h"
#include "backend/transport/tcp/frame_stream.h"
#include "tests/fuzz/fuzzed_group.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

std::pair<Fd, Fd> makePair() {
  std::array<int, 2> fds{};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

constexpr unsigned char kFetched = 1;
constexpr unsigned char kChecked = 2;
constexpr unsigned char kWrongSums = 4;
constexpr std::size_t kPieceBytes = 40;  // times the upper bits of the first byte; 0: one piece

// The fetches of this rank, in bytes.
constexpr std::array<std::size_t, 3> kFetches = {200, 8, 1000};

std::uint32_t putSum(std::string& bytes, std::size_t at, std::uint32_t sum) {
  std::memcpy(bytes.data() + at, &sum, sizeof sum);
  return sum;
}

// Units with headers of kCheckedHeaderBytes get the right checksums.
void repairUnits(std::string& bytes) {
  std::uint32_t headerSum = 0;
  for (std::size_t at = 0; at + kCheckedHeaderBytes <= bytes.size();) {
    const auto type = static_cast<UnitType>(bytes[at]);
    std::uint32_t size = 0;
    std::memcpy(&size, bytes.data() + at + 4, sizeof size);
    const std::size_t payload = at + kCheckedHeaderBytes;
    const bool hasPayload = type == UnitType::kFrames || type == UnitType::kNote;
    const std::size_t there = hasPayload ? std::min<std::size_t>(size, bytes.size() - payload) : 0;
    putSum(bytes, at + 8, crc32c(bytes.data() + payload, there));
    headerSum = putSum(bytes, at + 12, crc32c(bytes.data() + at, 12, headerSum));
    at = payload + there;
  }
}

// The same for the blocks of the fetches.
void repairBlocks(std::string& bytes) {
  std::uint32_t sum = 0;
  std::size_t at = 0;
  for (const std::size_t size : kFetches) {
    if (at + sizeof sum + size <= bytes.size()) {
      sum = putSum(bytes, at, crc32c(bytes.data() + at + sizeof sum, size, sum));
    }
    at += sizeof sum + size;
  }
}

// The writer of `lane` has sent a frame, so that credits can be right.
void send(FrameStream& stream, Lane lane) {
  const auto room = stream.writer(lane).reserve(8, 8);
  std::fill(room.begin(), room.end(), std::byte{1});
  stream.writer(lane).commit(8);
  bool moved = false;
  require(stream.flush(&moved).isOk());
}

// Gives the bytes to `socket` in pieces, and calls receive() after each piece and after the end of the stream, until
// receive() returns false.
template <typename Receive>
void arrive(Fd socket, std::string_view bytes, std::size_t piece, Receive receive) {
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::string_view some = bytes.substr(at, piece);
    require(*sendSome(socket, some) == some.size());
    if (!receive()) {
      return;
    }
  }
  socket.reset();
  static_cast<void>(receive());
}

// The owner's side: exposes 512 bytes, and takes frames and requests.
class Owner {
 public:
  explicit Owner(bool hasChecksums) : hasChecksums_(hasChecksums) {
    ASAN_POISON_MEMORY_REGION(steady_.data(), steady_.size());
    ASAN_UNPOISON_MEMORY_REGION(steady_.data() + 1024, 512);
    require(fetches_.expose(steady_.data() + 1024, 512).space != 0);
    send(stream_, Lane::kControl);
    send(stream_, Lane::kBulk);
  }
  ~Owner() { ASAN_UNPOISON_MEMORY_REGION(steady_.data(), steady_.size()); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  Fd takePeer() { return std::move(frames_.first); }
  bool receive() {
    for (bool moved = true; moved;) {
      if (!stream_.receive(&(moved = false)).isOk()) {
        return false;
      }
      takeFrames();
      serveNotes();
    }
    return true;
  }

 private:
  void takeFrames() {
    for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
      for (auto frame = stream_.reader(lane).peek(); !frame.empty(); frame = stream_.reader(lane).peek()) {
        const std::vector<std::byte> copy(frame.begin(), frame.end());
        stream_.reader(lane).release();
      }
    }
  }
  void serveNotes() {
    for (; !stream_.notesIn().empty(); stream_.notesIn().pop_front()) {
      bool moved = false;
      if (fetches_.serve(stream_.notesIn().front().bytes).isOk()) {
        static_cast<void>(fetches_.send(&moved));
      }
    }
  }

  const bool hasChecksums_;
  const std::span<std::byte> steady_ = steadyMemory().first(4096);
  std::pair<Fd, Fd> frames_ = makePair();
  std::pair<Fd, Fd> fetched_ = makePair();
  FrameStream stream_{std::move(frames_.second), {1024, 1024, 1024}, hasChecksums_};
  FetchStream fetches_{std::move(fetched_.second), hasChecksums_};
};

// The fetcher's side: has asked for kFetches, each in two runs.
class Fetcher {
 public:
  explicit Fetcher(bool hasChecksums) : fetches_(std::move(sockets_.second), hasChecksums) {
    for (std::size_t i = 0; i < kFetches.size(); ++i) {
      memory_[i] = std::make_unique<std::byte[]>(kFetches[i]);
      const std::size_t half = kFetches[i] / 2;
      const MemoryRun runs[] = {{memory_[i].get() + half, exposed(), kFetches[i] - half},
                                {memory_[i].get(), exposed() + 2048, half}};
      require(fetches_.ask(kFirstExposure, runs, &counts_[i], &requests_));
    }
  }

  static std::uint64_t exposed() { return reinterpret_cast<std::uint64_t>(steadyMemory().data()); }
  const std::vector<std::string>& requests() const { return requests_; }
  Fd takePeer() { return std::move(sockets_.first); }
  bool receive() {
    for (bool moved = true; moved;) {
      if (!fetches_.receive(&(moved = false)).isOk()) {
        return false;
      }
    }
    require(fetches_.isFetching() == (counts_.back().pending > 0));
    return true;
  }

 private:
  std::pair<Fd, Fd> sockets_ = makePair();
  FetchStream fetches_;
  std::array<std::unique_ptr<std::byte[]>, kFetches.size()> memory_;
  std::array<FetchCount, kFetches.size()> counts_;
  std::vector<std::string> requests_;
};

std::string readAll(const Fd& socket) {
  std::string bytes(8192, '\0');
  const ssize_t size = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return bytes;
}

// The bytes of an honest peer.
std::string units(bool hasChecksums) {
  auto [near, far] = makePair();
  FrameStream stream(std::move(near), {1024, 1024, 1024}, hasChecksums);
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    send(stream, lane);
  }
  ByteWriter request;
  request.u32(kFirstExposure);
  request.u32(1);
  request.u64(Fetcher::exposed() + 1024);
  request.u64(512);
  stream.sendNote(1, request.take());
  bool moved = false;
  require(stream.flush(&moved).isOk());
  return readAll(far);
}

std::string fetchedBytes(bool hasChecksums) {
  auto [near, far] = makePair();
  FetchStream owner(std::move(near), hasChecksums);
  require(owner.expose(steadyMemory().data(), 4096).space == kFirstExposure);
  const Fetcher fetcher(hasChecksums);
  for (const std::string& request : fetcher.requests()) {
    require(owner.serve(request).isOk());
  }
  bool moved = false;
  require(owner.send(&moved).isOk());
  return readAll(far);
}

}  // namespace

void parse(std::string_view input) {
  const auto head = static_cast<unsigned char>(input.empty() ? 0 : input[0]);
  std::string bytes(input.substr(std::min<std::size_t>(input.size(), 1)));
  const bool hasChecksums = (head & kChecked) != 0;
  const std::size_t piece = head >> 3 == 0 ? std::max<std::size_t>(bytes.size(), 1) : (head >> 3) * kPieceBytes;
  if (hasChecksums && (head & kWrongSums) == 0) {
    (head & kFetched) != 0 ? repairBlocks(bytes) : repairUnits(bytes);
  }
  if ((head & kFetched) != 0) {
    Fetcher fetcher(hasChecksums);
    arrive(fetcher.takePeer(), bytes, piece, [&] { return fetcher.receive(); });
  } else {
    Owner owner(hasChecksums);
    arrive(owner.takePeer(), bytes, piece, [&] { return owner.receive(); });
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> inputs;
  for (const unsigned char pieces : {0, 8}) {
    for (const unsigned char checked : {0, int{kChecked}}) {
      const auto head = static_cast<char>(pieces | checked);
      const std::string credit = std::string("\3\0\0\0\20\0\0\0", 8) + std::string(checked != 0 ? 8 : 0, '\0');
      const std::string all = units(checked != 0);
      inputs.push_back(head + all);
      inputs.push_back(head + all + credit);  // of 16 bytes
      inputs.push_back(static_cast<char>(head | kFetched) + fetchedBytes(checked != 0));
    }
  }
  return inputs;
}

}  // namespace shardwire::fuzz
