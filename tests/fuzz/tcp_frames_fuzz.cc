// A peer's bytes on the stream of a tcp connection: units, notes, and the requests for exposed memory in the notes.
#include <sanitizer/asan_interface.h>
#include <sys/socket.h>

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

// The writer of `lane` has sent a frame, so that credits can be right.
void send(FrameStream& stream, Lane lane) {
  const auto room = stream.writer(lane).reserve(8, 8);
  std::fill(room.begin(), room.end(), std::byte{1});
  stream.writer(lane).commit(8);
  bool moved = false;
  require(stream.flush(&moved).isOk());
}

}  // namespace

void parse(std::string_view input) {
  auto [near, far] = makePair();
  auto [fetcher, owner] = makePair();
  FrameStream stream(std::move(far), {1024, 1024, 1024});
  FetchStream fetches(std::move(owner));
  const auto steady = steadyMemory().first(4096);
  ASAN_POISON_MEMORY_REGION(steady.data(), steady.size());
  ASAN_UNPOISON_MEMORY_REGION(steady.data() + 1024, 512);
  require(fetches.expose(steady.data() + 1024, 512).space != 0);
  send(stream, Lane::kControl);
  send(stream, Lane::kBulk);
  require(*sendSome(near, input) == input.size());
  near.reset();
  bool moved = true;
  while (moved && stream.receive(&(moved = false)).isOk()) {
    for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
      for (auto frame = stream.reader(lane).peek(); !frame.empty(); frame = stream.reader(lane).peek()) {
        std::vector<std::byte> copy(frame.begin(), frame.end());
        stream.reader(lane).release();
      }
    }
    for (; !stream.notesIn().empty(); stream.notesIn().pop_front()) {
      if (fetches.serve(stream.notesIn().front().bytes).isOk()) {
        static_cast<void>(fetches.send(&moved));
      }
    }
  }
  ASAN_UNPOISON_MEMORY_REGION(steady.data(), steady.size());
}

std::vector<std::string> seeds() {
  auto [near, far] = makePair();
  FrameStream stream(std::move(near), {1024, 1024, 1024});
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    send(stream, lane);
  }
  ByteWriter request;
  request.u32(kFirstExposure);
  request.u32(1);
  request.u64(reinterpret_cast<std::uint64_t>(steadyMemory().data()) + 1024);
  request.u64(512);
  stream.sendNote(1, request.take());
  bool moved = false;
  require(stream.flush(&moved).isOk());
  std::string bytes(4096, '\0');
  const ssize_t size = ::recv(far.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return {bytes, bytes + std::string("\3\0\0\0\20\0\0\0", 8)};  // and a credit of 16 bytes
}

}  // namespace shardwire::fuzz
