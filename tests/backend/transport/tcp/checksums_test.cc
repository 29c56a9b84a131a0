// Checksums of a tcp connection. First the bytes on the wire. Then every bit of each kind of unit is flipped, and units
// are lost and repeated. Then fetches: the blocks at all edges of their length, flips, and memory that is written
// during the fetch. At last whole connections: one rank asks for checksums, a set-up is changed, and a cable in the
// middle flips a bit.
#include <sys/socket.h>

#include <cstring>
#include <functional>

#include "backend/base/crc32c.h"
#include "backend/transport/tcp/fetch_stream.h"
#include "backend/transport/tcp/frame_stream.h"
#include "tests/backend/transport/tcp/cable.h"
#include "tests/backend/transport/tcp/fake_dialer.h"
#include "tests/support/random.h"

namespace shardwire::testing {
namespace {

using internal::crc32c;
using internal::FetchCount;
using internal::FetchStream;
using internal::FrameStream;
using internal::Lane;
using internal::MemoryRun;

constexpr std::array<std::uint64_t, internal::kNumLanes> kShortLanes = {4096, 4096, 4096};
constexpr const char* kChanged = "other bytes arrived (CRC-32C ";

std::string word(std::uint32_t value) {
  std::string text(4, '\0');
  std::memcpy(text.data(), &value, 4);
  return text;
}

void putFrame(FrameStream& stream, Lane lane, std::string_view bytes) {
  const auto room = stream.writer(lane).reserve(bytes.size(), bytes.size());
  ASSERT_GE(room.size(), bytes.size());
  std::memcpy(room.data(), bytes.data(), bytes.size());
  stream.writer(lane).commit(bytes.size());
}

// All bytes that the socket has.
std::string drain(const Fd& socket) {
  std::string bytes(std::size_t{1} << 20, '\0');
  EXPECT_TRUE(internal::WaitLimit(soon()).waitFor(socket, POLLIN, "draining").isOk());
  std::size_t size = 0;
  for (ssize_t some = 0; (some = ::recv(socket.get(), bytes.data() + size, bytes.size() - size, MSG_DONTWAIT)) > 0;) {
    size += static_cast<std::size_t>(some);
  }
  bytes.resize(size);
  return bytes;
}

std::string flushed(FrameStream& stream, const Fd& far) {
  bool moved = false;
  EXPECT_TRUE(stream.flush(&moved).isOk());
  return drain(far);
}

// Written out by hand from the table in frame_stream.h.
TEST(TcpChecksums, WireBytesOfUnitsAreThese) {
  auto [near, far] = makeTcpPair();
  FrameStream stream(std::move(near), kShortLanes, true);
  putFrame(stream, Lane::kPoint, "abcdefgh");
  stream.sendNote(9, "123456789");
  const std::string first = std::string("\4\x9\0\0\x9\0\0\0", 8) + word(0xe3069283);  // the check value of CRC-32C
  const std::uint32_t firstSum = crc32c(first.data(), 12);
  const std::string frame = std::string("\x8\0\0\0FRAM", 8) + "abcdefgh";
  const std::string second = std::string("\1\2\0\0\x10\0\0\0", 8) + word(crc32c(frame.data(), 16));
  EXPECT_EQ(flushed(stream, far),
            first + word(firstSum) + "123456789" + second + word(crc32c(second.data(), 12, firstSum)) + frame);
}

// The notes and frames that a reader took, in order.
using Taken = std::vector<std::string>;

struct Fed {
  Status status;
  Taken taken;
};

// A stream that has sent 16 bytes on the control lane, so that credit can be right, gets these bytes, piece by piece,
// and then the end.
Fed feedChecked(const std::vector<std::string>& pieces) {
  auto [near, far] = makeTcpPair();
  FrameStream stream(std::move(far), kShortLanes, true);
  putFrame(stream, Lane::kControl, "released");
  bool moved = false;
  EXPECT_TRUE(stream.flush(&moved).isOk());
  Fed fed;
  for (std::size_t i = 0; fed.status.isOk() && i <= pieces.size(); ++i) {
    if (i < pieces.size()) {
      EXPECT_EQ(*internal::sendSome(near, pieces[i]), pieces[i].size());
    } else {
      ::shutdown(near.get(), SHUT_WR);
    }
    EXPECT_TRUE(internal::WaitLimit(soon()).waitFor(stream.socket(), POLLIN, "feeding").isOk());
    fed.status = stream.receive(&moved);
    for (; !stream.notesIn().empty(); stream.notesIn().pop_front()) {
      fed.taken.push_back(stream.notesIn().front().bytes);
    }
    for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
      for (auto frame = stream.reader(lane).peek(); !frame.empty(); frame = stream.reader(lane).peek()) {
        fed.taken.emplace_back(reinterpret_cast<const char*>(frame.data()), frame.size());
        stream.reader(lane).release();
      }
    }
  }
  return fed;
}

// Sends what `from` has, over the sockets in the middle, and takes all frames and notes of `to`. Returns the bytes.
std::string pass(FrameStream& from, const Fd& fromMiddle, FrameStream& to, const Fd& toMiddle) {
  std::string bytes = flushed(from, fromMiddle);
  EXPECT_EQ(*internal::sendSome(toMiddle, bytes), bytes.size());
  EXPECT_TRUE(internal::WaitLimit(soon()).waitFor(to.socket(), POLLIN, "passing").isOk());
  bool moved = false;
  EXPECT_TRUE(to.receive(&moved).isOk());
  to.notesIn().clear();
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    while (!to.reader(lane).peek().empty()) {
      to.reader(lane).release();
    }
  }
  return bytes;
}

// The bytes of each kind of unit, as a sender made them: credit, frames, a note, long frames, and at last a skip with a
// frame behind the skip.
std::vector<std::string> unitsOfEachKind() {
  auto [near, nearMiddle] = makeTcpPair();
  auto [farMiddle, far] = makeTcpPair();
  FrameStream stream(std::move(near), kShortLanes, true);
  FrameStream peer(std::move(far), kShortLanes, true);
  std::vector<std::string> units;
  const auto add = [&, &ours = nearMiddle, &theirs = farMiddle] { units.push_back(pass(stream, ours, peer, theirs)); };
  putFrame(peer, Lane::kControl, "released");
  pass(peer, farMiddle, stream, nearMiddle);
  add();
  putFrame(stream, Lane::kControl, "a frame");
  putFrame(stream, Lane::kControl, "and another");
  add();
  stream.sendNote(3, "a note");
  add();
  for (const std::size_t size : {1000U, 1000U, 1000U, 936U}) {  // 128 bytes of the ring are left
    putFrame(stream, Lane::kBulk, std::string(size, 'b'));
    add();
  }
  pass(peer, farMiddle, stream, nearMiddle);  // credit
  putFrame(stream, Lane::kBulk, std::string(1000, 'c'));
  add();
  EXPECT_EQ(units.back().substr(0, 8), std::string("\2\1\0\0\x80\0\0\0", 8));
  return units;
}

void expectPrefix(const Taken& taken, const Taken& all) {
  ASSERT_LE(taken.size(), all.size());
  EXPECT_TRUE(std::equal(taken.begin(), taken.end(), all.begin()));
}

TEST(TcpChecksums, EveryFlippedBitOfAUnitIsFound) {
  const std::vector<std::string> units = unitsOfEachKind();
  const Fed right = feedChecked(units);
  ASSERT_TRUE(right.status.isOk()) << right.status.message();
  ASSERT_EQ(right.taken.size(), 8U);
  for (std::size_t i = 0; i < units.size(); ++i) {
    for (std::size_t at = 0; at < std::min<std::size_t>(units[i].size(), 40); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        // Nothing but the end follows: the error must not wait for later bytes. A wrong length would.
        std::vector<std::string> changed(units.begin(), units.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        changed[i][at] = static_cast<char>(changed[i][at] ^ (1 << bit));
        const Fed fed = feedChecked(changed);
        expectWords(fed.status, StatusCode::kMismatch, kChanged);
        if (at < 16) {
          expectWords(fed.status, StatusCode::kMismatch, "sent the header of a unit");
        }
        expectPrefix(fed.taken, right.taken);
      }
    }
  }
}

TEST(TcpChecksums, ALostOrRepeatedUnitIsFound) {
  const std::vector<std::string> units = unitsOfEachKind();
  for (std::size_t i = 0; i < units.size(); ++i) {
    std::vector<std::string> changed = units;
    changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(i), units[i]);
    expectWords(feedChecked(changed).status, StatusCode::kMismatch, kChanged);
    if (i + 1 < units.size()) {
      changed = units;
      changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
      expectWords(feedChecked(changed).status, StatusCode::kMismatch, kChanged);
    }
  }
}

// A connection of streams of fetches, with the bytes in the middle in hand.
struct Fetching {
  Fetching() : Fetching(makeTcpPair(), makeTcpPair()) {}
  Fetching(std::pair<Fd, Fd> ofOwner, std::pair<Fd, Fd> ofFetcher)
      : owner(std::move(ofOwner.first), true),
        fetcher(std::move(ofFetcher.second), true),
        fromOwner(std::move(ofOwner.second)),
        toFetcher(std::move(ofFetcher.first)) {}

  // Until `done` or the fetcher's error. change(position in the stream, bytes) changes bytes on the way.
  Status carry(const std::function<bool()>& done, const std::function<void(std::size_t, std::span<char>)>& change,
               std::size_t step) {
    std::size_t position = 0;
    std::vector<char> bytes(step);
    for (const auto start = Clock::now(); !done();) {
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
      if (Clock::now() - start > std::chrono::seconds(30)) {
        break;
      }
      bool moved = false;
      SW_RETURN_IF_ERROR(owner.send(&moved));
      const ssize_t some = ::recv(fromOwner.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (some > 0) {
        const std::span<char> got(bytes.data(), static_cast<std::size_t>(some));
        change(position, got);
        position += got.size();
        for (std::size_t at = 0; at < got.size();) {
          at += *internal::sendSome(toFetcher, std::string_view(got.data(), got.size()).substr(at));
          SW_RETURN_IF_ERROR(fetcher.receive(&moved));
        }
      }
      SW_RETURN_IF_ERROR(fetcher.receive(&moved));
    }
    return Status::ok();
  }

  FetchStream owner, fetcher;
  Fd fromOwner, toFetcher;
};

std::vector<std::byte> randomBytes(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random.bits());
  }
  return bytes;
}

void untouched(std::size_t, std::span<char>) {}

TEST(TcpChecksums, FetchesOfEveryLengthArrive) {
  constexpr std::size_t kBlock = FetchStream::kBlockBytes;
  for (const std::size_t step : {std::size_t{1} << 16, std::size_t{999}}) {
    Fetching pair;
    const auto memory = randomBytes(3 * kBlock + 64, 1);
    auto copy = std::vector<std::byte>(memory.size());
    const auto address = pair.owner.expose(memory.data(), memory.size());
    std::size_t at = 0;
    for (const std::size_t size : {std::size_t{1}, std::size_t{5}, kBlock - 1, kBlock, kBlock + 1}) {
      // Runs of uneven lengths, with the halves of the local memory in the other order.
      const MemoryRun runs[] = {{copy.data() + at + size / 3, address.value + at + size / 3, size - size / 3},
                                {copy.data() + at, address.value + at, size / 3}};
      FetchCount count;
      std::vector<std::string> requests;
      ASSERT_TRUE(pair.fetcher.ask(address.space, std::span(runs).first(size / 3 > 0 ? 2 : 1), &count, &requests));
      FetchCount second;
      const MemoryRun again{copy.data() + at, address.value + at, size};
      ASSERT_TRUE(pair.fetcher.ask(address.space, {&again, 1}, &second, &requests));
      ASSERT_EQ(requests.size(), 2U);
      for (const std::string& request : requests) {
        ASSERT_TRUE(pair.owner.serve(request).isOk());
      }
      const Status carried = pair.carry([&] { return count.pending + second.pending == 0; }, untouched, step);
      ASSERT_TRUE(carried.isOk()) << carried.message();
      at += size;
    }
    EXPECT_TRUE(std::equal(copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(at), memory.begin()));
    EXPECT_TRUE(pair.owner.conceal(address.space));
    EXPECT_FALSE(pair.owner.isBlocked());
  }
}

TEST(TcpChecksums, AFlippedBitOfAFetchIsFoundBeforeTheFetchEnds) {
  constexpr std::size_t kBlock = FetchStream::kBlockBytes;
  constexpr std::size_t kSize = 2 * kBlock + 100;
  const auto memory = randomBytes(kSize, 2);
  // A checksum, the first and the last byte behind it, the second block, the last byte of all.
  for (const std::size_t at : {std::size_t{0}, std::size_t{3}, std::size_t{4}, kBlock + 3, kBlock + 4, kBlock + 8,
                               2 * kBlock + 7, 2 * kBlock + 8, 2 * kBlock + 12, kSize + 11}) {
    for (const std::size_t step : {std::size_t{1} << 16, std::size_t{999}}) {
      Fetching pair;
      std::vector<std::byte> copy(kSize);
      const auto address = pair.owner.expose(memory.data(), kSize);
      const MemoryRun all{copy.data(), address.value, kSize};
      FetchCount count;
      std::vector<std::string> requests;
      ASSERT_TRUE(pair.fetcher.ask(address.space, {&all, 1}, &count, &requests));
      ASSERT_TRUE(pair.owner.serve(requests[0]).isOk());
      const Status carried = pair.carry([&] { return count.pending == 0; },
                                        [&](std::size_t position, std::span<char> bytes) {
                                          if (at >= position && at < position + bytes.size()) {
                                            bytes[at - position] = static_cast<char>(bytes[at - position] ^ 0x10);
                                          }
                                        },
                                        step);
      expectWords(carried, StatusCode::kMismatch, kChanged);
      EXPECT_EQ(count.pending, 1U) << at;
    }
  }
}

// Symmetric memory may be written by a third rank while a peer fetches it. The bytes may be old or new; the program
// knows. They are no bytes that the network changed.
TEST(TcpChecksums, MemoryThatIsWrittenMeanwhileIsNoChange) {
  Fetching pair;
  std::vector<std::byte> memory(std::size_t{16} << 20);
  std::vector<std::byte> copy(memory.size());
  const auto address = pair.owner.expose(memory.data(), memory.size());
  const MemoryRun all{copy.data(), address.value, memory.size()};
  FetchCount count;
  std::vector<std::string> requests;
  ASSERT_TRUE(pair.fetcher.ask(address.space, {&all, 1}, &count, &requests));
  ASSERT_TRUE(pair.owner.serve(requests[0]).isOk());
  unsigned turn = 0;
  const Status carried = pair.carry([&] { return count.pending == 0; },
                                    [&](std::size_t, std::span<char>) {
                                      // Between the making of a block and its sending, too: blocks wait in `owner`.
                                      ++turn;
                                      for (std::size_t i = 0; i < memory.size(); i += 4096) {
                                        memory[i] = static_cast<std::byte>(turn);
                                      }
                                    },
                                    std::size_t{1} << 16);
  EXPECT_TRUE(carried.isOk()) << carried.message();
}

TEST(TcpChecksums, AConnectionHasThemIfEitherRankAsks) {
  for (const auto& [first, second] : {std::pair{true, false}, {false, true}, {true, true}, {false, false}}) {
    TcpRanks pair;
    pair.ranks[0].options.tcpCrc = first;
    pair.ranks[1].options.tcpCrc = second;
    pair.join();
    ASSERT_TRUE(pair.ranks[0].status.isOk() && pair.ranks[1].status.isOk()) << pair.ranks[0].status.message();
    const std::string end = first || second ? " end, CRC-32C" : " end";
    EXPECT_TRUE(pair.connection(0).describe().ends_with(end)) << pair.connection(0).describe();
    EXPECT_TRUE(pair.connection(1).describe().ends_with(end)) << pair.connection(1).describe();
    for (const Rank rank : {0, 1}) {
      std::memcpy(pair.connection(rank).reserve(Lane::kBulk, 8, 8).data(), "12345678", 8);
      pair.connection(rank).commit(Lane::kBulk, 8);
      ASSERT_TRUE(pair.pollUntil([&] { return !pair.connection(1 - rank).peek(Lane::kBulk).empty(); }));
      EXPECT_EQ(std::memcmp(pair.connection(1 - rank).peek(Lane::kBulk).data(), "12345678", 8), 0);
      pair.connection(1 - rank).release(Lane::kBulk);
    }
  }
}

TEST(TcpChecksums, AChangedSetUpIsRefused) {
  for (std::size_t at = 4 + 1; at < FakeDialer::setup().size(); ++at) {  // behind the magic number and the version
    FakeDialer dialer;
    std::string setup = FakeDialer::setup();
    setup[at] = static_cast<char>(setup[at] ^ 1);
    ASSERT_TRUE(dialer.link().send(setup, soon()).isOk());
    dialer.finish();
    EXPECT_EQ(dialer.real.status.code(), StatusCode::kMismatch) << at << ": " << dialer.real.status.message();
    EXPECT_NE(dialer.real.status.message().find("the peer's tcp set-up"), std::string::npos) << at;
  }
}

TEST(TcpChecksums, AChangedFetchNamesThePeerAndIsReportedToThePeer) {
  Options options;
  options.tcpCrc = true;
  FakeDialer dialer(options);
  const Fd socket = dialer.join();
  std::vector<std::byte> memory(100);
  FetchCount count;
  const MemoryRun all{memory.data(), 0x1000, memory.size()};
  ASSERT_TRUE(dialer.real.connection->fetch(internal::kFirstExposure, {&all, 1}, &count));
  const std::string bytes(100, 'x');
  ASSERT_EQ(*internal::sendSome(socket, word(crc32c(bytes.data(), 100) ^ 1) + bytes), 104U);
  const Status failure = dialer.awaitFailure();
  for (const char* words :
       {"rank 1 sent fetched bytes", kChanged, "SHARDWIRE_SOCKET_IFNAME", "the stream of fetches"}) {
    expectWords(failure, StatusCode::kPeerFailed, words);
  }
  EXPECT_EQ(count.pending, 1U);
  EXPECT_NE(drain(dialer.link().socket()).find("the stream of fetches: rank 1 sent fetched bytes"), std::string::npos);
}

TEST(TcpChecksums, AFlippedBitAfterManyFramesFailsBothRanks) {
  for (const bool isLong : {false, true}) {
    auto [near, nearCable] = makeTcpPair();
    auto [farCable, far] = makeTcpPair();
    Cable cable(std::move(nearCable), std::move(farCable));
    TcpRanks pair;
    pair.ranks[0].options.tcpCrc = true;
    std::thread dialer([&, link = Link(std::move(near), "far end", testSecret())]() mutable {
      pair.ranks[1].join(std::move(link), 1, 0, true);
    });
    pair.ranks[0].join(Link(std::move(far), "near end", testSecret()), 0, 1, false);
    dialer.join();
    ASSERT_TRUE(pair.ranks[0].status.isOk()) << pair.ranks[0].status.message();
    const auto contents = randomBytes(isLong ? pair.connection(1).maxFrameBytes(Lane::kBulk) : 100, 5);
    const auto send = [&] {
      ASSERT_TRUE(pair.pollUntil(
          [&] { return !pair.connection(1).reserve(Lane::kBulk, contents.size(), contents.size()).empty(); }));
      std::memcpy(pair.connection(1).reserve(Lane::kBulk, contents.size(), contents.size()).data(), contents.data(),
                  contents.size());
      pair.connection(1).commit(Lane::kBulk, contents.size());
    };
    for (int i = 0; i < 300; ++i) {
      send();
      ASSERT_TRUE(pair.pollUntil([&] { return !pair.connection(0).peek(Lane::kBulk).empty(); }));
      const auto got = pair.connection(0).peek(Lane::kBulk);
      ASSERT_TRUE(std::equal(got.begin(), got.end(), contents.begin(), contents.end()));
      pair.connection(0).release(Lane::kBulk);
    }
    cable.flipNext();
    send();
    ASSERT_TRUE(
        pair.pollUntil([&] { return !pair.connection(0).health().isOk() && !pair.connection(1).health().isOk(); }));
    EXPECT_TRUE(pair.connection(0).peek(Lane::kBulk).empty());
    expectWords(pair.connection(0).health(), StatusCode::kPeerFailed, "rank 1 sent ");
    expectWords(pair.connection(0).health(), StatusCode::kPeerFailed, kChanged);
    expectWords(pair.connection(0).health(), StatusCode::kPeerFailed, "(the stream of frames, tcp near end)");
    expectWords(pair.connection(1).health(), StatusCode::kPeerFailed,
                "rank 0 refused the stream of frames: rank 1 sent");
    expectWords(pair.connection(1).health(), StatusCode::kPeerFailed, kChanged);
  }
}

}  // namespace
}  // namespace shardwire::testing
