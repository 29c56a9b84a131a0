// TLS of a tcp connection. First one stream: bytes of all lengths through full sockets, changes of the key, other keys,
// a server with a certificate in place of the key, closed and silent ends. Then fetches through a cable with a reader.
// At last whole connections: the options of the two ranks, peers with half a handshake, and cables that read along,
// flip a bit, or change a set-up.
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "backend/base/crc32c.h"
#include "backend/transport/tcp/fetch_stream.h"
#include "backend/transport/tcp/frame_stream.h"
#include "backend/transport/tcp/tcp_stream.h"
#include "tests/backend/transport/tcp/cable.h"
#include "tests/backend/transport/tcp/fake_dialer.h"
#include "tests/support/random.h"

namespace shardwire::testing {
namespace {

using internal::Digest;
using internal::FetchCount;
using internal::FetchStream;
using internal::FrameStream;
using internal::Lane;
using internal::MemoryRun;
using internal::TcpStream;

Digest keyOf(std::uint8_t fill) {
  Digest key;
  key.fill(fill);
  return key;
}

struct Ends {
  TcpStream client, server;
};

// The handshakes of both ends; an end with an error closes.
void shakeHands(Ends& ends, Status* client, Status* server) {
  bool isDone[2] = {false, false};
  TcpStream* const streams[] = {&ends.client, &ends.server};
  Status* const statuses[] = {client, server};
  for (const Deadline limit = soon(); !(isDone[0] && isDone[1]);) {
    ASSERT_LT(Clock::now(), limit);
    for (const int end : {0, 1}) {
      if (!isDone[end]) {
        const auto done = streams[end]->handshake();
        *statuses[end] = done.status();
        isDone[end] = !done.isOk() || *done;
        if (!done.isOk()) {
          *streams[end] = TcpStream();
        }
      }
    }
  }
}

Ends secured(std::pair<Fd, Fd> sockets, std::uint64_t recordsPerKey = TcpStream::kRecordsPerKey) {
  Ends ends{TcpStream(std::move(sockets.first)), TcpStream(std::move(sockets.second))};
  EXPECT_TRUE(ends.client.beginTls(true, keyOf(1), recordsPerKey).isOk());
  EXPECT_TRUE(ends.server.beginTls(false, keyOf(1), recordsPerKey).isOk());
  Status client, server;
  shakeHands(ends, &client, &server);
  EXPECT_TRUE(client.isOk() && server.isOk()) << client.message() << server.message();
  return ends;
}

// Sockets with short buffers: most sends stop in the middle of a record.
std::pair<Fd, Fd> makeShortPair() {
  auto pair = makeTcpPair();
  const int bytes = 4096;
  for (const Fd* socket : {&pair.first, &pair.second}) {
    ::setsockopt(socket->get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    ::setsockopt(socket->get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }
  return pair;
}

std::vector<char> randomText(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  std::vector<char> text(size);
  for (char& each : text) {
    each = static_cast<char>(random.bits());
  }
  return text;
}

// At most 100,000 bytes from `at` on, in pieces of random lengths.
std::vector<iovec> cut(std::vector<char>& text, std::size_t at, Random& random) {
  std::vector<iovec> pieces;
  const std::size_t end = std::min<std::size_t>(text.size(), at + 100000);
  while (at < end) {
    const auto most = static_cast<std::size_t>(random.between(1, random.between(0, 4) == 0 ? 40000 : 3000));
    pieces.push_back({text.data() + at, std::min(end - at, most)});
    at += pieces.back().iov_len;
  }
  return pieces;
}

TEST(TcpTls, BytesOfAllLengthsArriveBothWays) {
  for (const bool isShort : {false, true}) {
    Ends ends = secured(isShort ? makeShortPair() : makeTcpPair(), 5);
    TcpStream* const streams[] = {&ends.client, &ends.server};
    // Over short sockets many records wait for a delayed acknowledgement.
    const std::size_t length = std::size_t{isShort ? 100U : 3000U} << 10;
    std::vector<char> texts[] = {randomText(length, 1), randomText(length, 2)};
    std::vector<char> copies[] = {std::vector<char>(length), std::vector<char>(length)};
    std::size_t sent[2] = {};
    std::size_t got[2] = {};
    std::size_t numBlocked = 0;
    Random random(3);
    // False: the socket has no room, or no bytes.
    const auto count = [](const TcpStream& stream, ssize_t size, std::size_t* sum) {
      EXPECT_TRUE(size > 0 || (size < 0 && errno == EAGAIN)) << size << ' ' << stream.error("the stream").message();
      *sum += static_cast<std::size_t>(std::max<ssize_t>(size, 0));
      return size > 0;
    };
    const Deadline limit = Clock::now() + std::chrono::seconds(60);
    while (got[0] < length || got[1] < length) {
      ASSERT_LT(Clock::now(), limit) << got[0] << ' ' << got[1];
      ASSERT_FALSE(::testing::Test::HasFailure());
      for (const int end : {0, 1}) {
        // After a short send the same bytes come in other pieces.
        TcpStream& stream = *streams[end];
        while (sent[end] < length && count(stream, stream.send(cut(texts[end], sent[end], random)), &sent[end])) {
        }
        numBlocked += sent[end] < length ? 1 : 0;
      }
      for (const int end : {0, 1}) {
        TcpStream& stream = *streams[1 - end];
        while (got[end] < length && count(stream, stream.receive(cut(copies[end], got[end], random)), &got[end])) {
        }
      }
    }
    EXPECT_TRUE(texts[0] == copies[0] && texts[1] == copies[1]);
    EXPECT_TRUE(!isShort || numBlocked > 1) << numBlocked;
  }
}

// The machines of tests/rig have such a kernel.
TEST(TcpTls, TheKernelEncryptsWhereItCan) {
  const Ends ends = secured(makeTcpPair());
  if (!std::filesystem::exists("/proc/net/tls_stat")) {
    GTEST_SKIP() << "this kernel has no TLS: tests/rig/run_rdma.py";
  }
  EXPECT_EQ(ends.client.protection(), std::string(", TLS 1.3 (sent by the kernel)"));
  EXPECT_EQ(ends.server.protection(), std::string(", TLS 1.3 (sent by the kernel)"));
}

// OpenSSL has decrypted more than the caller took, and the socket is empty: epoll reports nothing.
TEST(TcpTls, HeldBytesAreReceivedWithoutTheSocket) {
  Ends ends = secured(makeTcpPair());
  std::vector<char> text = randomText(40000, 1);
  const iovec all{text.data(), text.size()};
  ASSERT_EQ(ends.client.send({&all, 1}), 40000);
  ASSERT_TRUE(internal::WaitLimit(soon()).waitFor(ends.server.socket(), POLLIN, "receiving").isOk());
  std::vector<char> copy(text.size());
  const iovec first{copy.data(), 100};
  ASSERT_EQ(ends.server.receive({&first, 1}), 100);
  EXPECT_TRUE(ends.server.holdsBytes());
  const char more = 'x';
  const iovec later{const_cast<char*>(&more), 1};
  ASSERT_EQ(ends.client.send({&later, 1}), 1);
  ASSERT_TRUE(internal::WaitLimit(soon()).waitFor(ends.server.socket(), POLLIN, "receiving").isOk());
  std::size_t at = 100;
  for (ssize_t size = 0;; at += static_cast<std::size_t>(size)) {
    const iovec rest{copy.data() + at, copy.size() - at};
    size = ends.server.receiveHeld({&rest, 1});
    if (size < 0) {
      EXPECT_EQ(errno, EAGAIN);
      break;
    }
    ASSERT_LT(at + static_cast<std::size_t>(size), copy.size() + 1);
    if (at + static_cast<std::size_t>(size) == copy.size()) {
      at = copy.size();
      break;
    }
  }
  EXPECT_EQ(at, copy.size());
  EXPECT_EQ(copy, text);
  char last = 0;
  const iovec place{&last, 1};
  EXPECT_EQ(ends.server.receiveHeld({&place, 1}), -1);  // the byte is in the socket
  EXPECT_EQ(ends.server.receive({&place, 1}), 1);
  EXPECT_EQ(last, 'x');
}

// A server sends as soon as the server has checked the client's part. A client must not take these bytes together with
// the handshake: epoll would not report the bytes.
TEST(TcpTls, BytesBehindTheHandshakeStayInTheSocket) {
  auto sockets = makeTcpPair();
  Ends ends{TcpStream(std::move(sockets.first)), TcpStream(std::move(sockets.second))};
  ASSERT_TRUE(ends.client.beginTls(true, keyOf(1)).isOk() && ends.server.beginTls(false, keyOf(1)).isOk());
  for (const Deadline limit = soon(); !*ends.server.handshake();) {
    ASSERT_LT(Clock::now(), limit);
    ASSERT_FALSE(*ends.client.handshake());
  }
  char byte = 'x';
  const iovec piece{&byte, 1};
  ASSERT_EQ(ends.server.send({&piece, 1}), 1);
  for (const Deadline limit = soon(); !*ends.client.handshake();) {
    ASSERT_LT(Clock::now(), limit);
  }
  EXPECT_FALSE(ends.client.holdsBytes());
  EXPECT_TRUE(internal::WaitLimit(soon()).waitFor(ends.client.socket(), POLLIN, "receiving").isOk());
  EXPECT_EQ(ends.client.receive({&piece, 1}), 1);
}

TEST(TcpTls, AnotherKeyIsAnErrorOfBothEnds) {
  auto sockets = makeTcpPair();
  Ends ends{TcpStream(std::move(sockets.first)), TcpStream(std::move(sockets.second))};
  ASSERT_TRUE(ends.client.beginTls(true, keyOf(1)).isOk() && ends.server.beginTls(false, keyOf(2)).isOk());
  Status client, server;
  shakeHands(ends, &client, &server);
  expectWords(client, StatusCode::kMismatch, "the TLS handshake failed");
  expectWords(server, StatusCode::kMismatch, "the TLS handshake failed");
}

// A process between the two ranks has no key, but may have any certificate.
TEST(TcpTls, ACertificateIsNoKey) {
  EVP_PKEY* const pair = ::EVP_EC_gen("P-256");
  X509* const certificate = ::X509_new();
  ::X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  ::X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  ::X509_set_pubkey(certificate, pair);
  ASSERT_GT(::X509_sign(certificate, pair, ::EVP_sha256()), 0);
  SSL_CTX* const context = ::SSL_CTX_new(::TLS_server_method());
  ASSERT_EQ(::SSL_CTX_use_certificate(context, certificate), 1);
  ASSERT_EQ(::SSL_CTX_use_PrivateKey(context, pair), 1);
  auto [near, far] = makeTcpPair();
  SSL* const server = ::SSL_new(context);
  ::SSL_set_fd(server, far.get());
  TcpStream client(std::move(near));
  ASSERT_TRUE(client.beginTls(true, keyOf(1)).isOk());
  Status status;
  for (const Deadline limit = soon(); status.isOk() && Clock::now() < limit;) {
    ::SSL_accept(server);
    const auto done = client.handshake();
    status = done.status();
    ASSERT_FALSE(done.isOk() && *done);
  }
  expectWords(status, StatusCode::kMismatch, "certificate verify failed");
  ::SSL_free(server);
  ::SSL_CTX_free(context);
  ::X509_free(certificate);
  ::EVP_PKEY_free(pair);
}

// Without SIGPIPE: the signal would end this process.
TEST(TcpTls, AClosedEndIsTheEndOfTheStream) {
  Ends ends = secured(makeTcpPair());
  char byte = 'x';
  const iovec piece{&byte, 1};
  ASSERT_EQ(ends.client.send({&piece, 1}), 1);
  ends.client = TcpStream();
  ASSERT_TRUE(internal::WaitLimit(soon()).waitFor(ends.server.socket(), POLLIN, "receiving").isOk());
  EXPECT_EQ(ends.server.receive({&piece, 1}), 1);
  for (ssize_t size = -1; size != 0;) {
    ASSERT_TRUE(internal::WaitLimit(soon()).waitFor(ends.server.socket(), POLLIN, "the end").isOk());
    size = ends.server.receive({&piece, 1});
    ASSERT_TRUE(size == 0 || errno == EAGAIN);
  }
  EXPECT_EQ(ends.server.receive({&piece, 1}), 0);
  ssize_t size = 0;
  for (const Deadline limit = soon(); (size = ends.server.send({&piece, 1})) == 1;) {
    ASSERT_LT(Clock::now(), limit);
  }
  EXPECT_TRUE(errno == EPIPE || errno == ECONNRESET) << errno;
}

// ---- fetches

TEST(TcpTls, ACableSeesNothingOfAFetchAndFindsNoBitToFlip) {
  auto near = makeTcpPair();
  auto far = makeTcpPair();
  std::vector<char> seen;  // by the cable
  std::mutex mutex;
  std::atomic<bool> flips = false;
  Cable cable(std::move(near.second), std::move(far.first), [&](int from, std::span<char> bytes) {
    const std::lock_guard lock(mutex);
    seen.insert(seen.end(), bytes.begin(), bytes.end());
    if (from == 1 && flips) {
      bytes[bytes.size() / 2] ^= 1;
    }
  });
  Ends ends = secured({std::move(near.first), std::move(far.second)});
  FetchStream fetcher(std::move(ends.client)), owner(std::move(ends.server));
  const std::string line = "the bytes of a tensor: ";
  std::vector<std::byte> memory(std::size_t{9} << 20);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<std::byte>(line[i % line.size()]);
  }
  std::vector<std::byte> copy(memory.size());
  const auto address = owner.expose(memory.data(), memory.size());
  for (const bool isChanged : {false, true}) {
    flips = isChanged;
    FetchCount count;
    std::vector<std::string> requests;
    const MemoryRun all{copy.data(), address.value, memory.size()};
    ASSERT_TRUE(fetcher.ask(address.space, {&all, 1}, &count, &requests));
    for (const std::string& request : requests) {
      ASSERT_TRUE(owner.serve(request).isOk());
    }
    Status received;
    bool moved = false;
    for (const Deadline limit = soon(); count.pending > 0 && received.isOk();) {
      ASSERT_LT(Clock::now(), limit);
      static_cast<void>(owner.send(&moved));
      received = fetcher.receive(&moved);
    }
    if (isChanged) {
      expectWords(received, StatusCode::kMismatch, "sent bytes that TLS rejects");
      expectWords(received, StatusCode::kMismatch, "SHARDWIRE_SOCKET_IFNAME");
    } else {
      EXPECT_TRUE(received.isOk()) << received.message();
      EXPECT_EQ(copy, memory);
    }
  }
  const std::lock_guard lock(mutex);
  EXPECT_GT(seen.size(), memory.size());
  EXPECT_EQ(std::search(seen.begin(), seen.end(), line.begin(), line.end()), seen.end());
}

// ---- connections

void setTls(TcpRanks& pair, TcpTls first, TcpTls second) {
  pair.ranks[0].options.tcpTls = first;
  pair.ranks[1].options.tcpTls = second;
}

TEST(TcpTls, AConnectionHasItIfARankAsksAndNoRankForbidsIt) {
  using enum TcpTls;
  for (const auto& [first, second, hasTls] : {std::tuple{kOn, kOn, true},
                                              {kOn, kAuto, true},
                                              {kAuto, kOn, true},
                                              {kAuto, kAuto, false},
                                              {kOff, kAuto, false},
                                              {kAuto, kOff, false},
                                              {kOff, kOff, false}}) {
    TcpRanks pair;
    setTls(pair, first, second);
    pair.join();
    ASSERT_TRUE(pair.ranks[0].status.isOk() && pair.ranks[1].status.isOk())
        << pair.ranks[0].status.message() << pair.ranks[1].status.message();
    for (const Rank rank : {0, 1}) {
      EXPECT_EQ(pair.connection(rank).describe().find(" end, TLS 1.3") != std::string::npos, hasTls)
          << pair.connection(rank).describe();
      std::memcpy(pair.connection(rank).reserve(Lane::kBulk, 8, 8).data(), "12345678", 8);
      pair.connection(rank).commit(Lane::kBulk, 8);
      ASSERT_TRUE(pair.pollUntil([&] { return !pair.connection(1 - rank).peek(Lane::kBulk).empty(); }));
      EXPECT_EQ(std::memcmp(pair.connection(1 - rank).peek(Lane::kBulk).data(), "12345678", 8), 0);
      pair.connection(1 - rank).release(Lane::kBulk);
    }
  }
}

TEST(TcpTls, ARankThatForbidsWhatTheOtherDemandsIsNamedOnBoth) {
  for (const Rank demands : {0, 1}) {
    TcpRanks pair;
    pair.ranks[demands].options.tcpTls = TcpTls::kOn;
    pair.ranks[1 - demands].options.tcpTls = TcpTls::kOff;
    pair.join();
    for (const TcpRank& rank : pair.ranks) {
      expectWords(rank.status, StatusCode::kInvalidArgument,
                  "rank " + std::to_string(demands) + " must encrypt its tcp connections (SHARDWIRE_TCP_TLS=on");
      expectWords(rank.status, StatusCode::kInvalidArgument,
                  "rank " + std::to_string(1 - demands) + " must not (SHARDWIRE_TCP_TLS=off)");
    }
  }
}

// A dialer without its part of the handshake.
struct HalfDialer : FakeDialer {
  explicit HalfDialer(Duration patience = std::chrono::seconds(10)) : FakeDialer(demands(), patience) {
    fetches = call(greet());
    prove(fetches);
    agree(fetches);
  }
  static Options demands() {
    Options options;
    options.tcpTls = TcpTls::kOn;
    return options;
  }
  Fd fetches;
};

TEST(TcpTls, ASilentPeerInTheHandshakeIsATimeout) {
  HalfDialer dialer(std::chrono::milliseconds(300));
  dialer.finish();
  expectWords(dialer.real.status, StatusCode::kTimeout, "waiting for the peer's part of the TLS handshake");
}

TEST(TcpTls, APeerThatDiesInTheHandshakeIsGone) {
  HalfDialer dialer;
  const char begun[] = {0x16, 0x03, 0x01, 0x01, 0x00, 0x01};  // of a client's first message
  ASSERT_TRUE(internal::sendSome(dialer.link().socket(), {begun, sizeof begun}).isOk());
  dialer.fetches.reset();
  ::shutdown(dialer.link().socket().get(), SHUT_RDWR);
  dialer.finish();
  expectWords(dialer.real.status, StatusCode::kPeerFailed, "closed the connection during the TLS handshake");
}

TEST(TcpTls, OtherBytesInTheHandshakeAreAMismatch) {
  HalfDialer dialer;
  ASSERT_TRUE(internal::sendSome(dialer.link().socket(), "GET / HTTP/1.1\r\n\r\n").isOk());
  dialer.finish();
  expectWords(dialer.real.status, StatusCode::kMismatch, "the TLS handshake failed: the peer sent bytes that TLS");
}

// A pair whose stream of frames goes through a cable.
struct CabledRanks : TcpRanks {
  explicit CabledRanks(Cable::Edit edit = nullptr) {
    auto near = makeTcpPair();
    auto far = makeTcpPair();
    cable = std::make_unique<Cable>(std::move(near.second), std::move(far.first), std::move(edit));
    setTls(*this, TcpTls::kOn, TcpTls::kOn);
    std::thread dialer([&, link = Link(std::move(near.first), "far end", testSecret())]() mutable {
      ranks[1].join(std::move(link), 1, 0, true);
    });
    ranks[0].join(Link(std::move(far.second), "near end", testSecret()), 0, 1, false);
    dialer.join();
  }
  void send(std::string_view text) {
    std::memcpy(connection(1).reserve(Lane::kBulk, text.size(), text.size()).data(), text.data(), text.size());
    connection(1).commit(Lane::kBulk, text.size());
  }
  std::unique_ptr<Cable> cable;
};

TEST(TcpTls, ACableSeesNothingOfTheFrames) {
  std::string seen;
  std::mutex mutex;
  CabledRanks pair([&](int, std::span<char> bytes) {
    const std::lock_guard lock(mutex);
    seen.append(bytes.data(), bytes.size());
  });
  ASSERT_TRUE(pair.ranks[0].status.isOk()) << pair.ranks[0].status.message();
  const std::string text = "a tensor of sixteen";
  pair.send(text);
  ASSERT_TRUE(pair.pollUntil([&] { return !pair.connection(0).peek(Lane::kBulk).empty(); }));
  EXPECT_EQ(std::memcmp(pair.connection(0).peek(Lane::kBulk).data(), text.data(), text.size()), 0);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(seen.find(text), std::string::npos);
  EXPECT_GT(seen.size(), 300U);
}

// One read takes both records. The bytes of the first are returned, and epoll reports nothing more.
TEST(TcpTls, AFlippedBitBehindAGoodRecordIsNoticed) {
  constexpr std::size_t kRecord = 5 + 8 + 8 + 16 + 1 + 16;  // TLS, unit, frame, payload, type, tag
  std::atomic<std::size_t> counted = 0;
  std::atomic<bool> counts = false;
  auto near = makeTcpPair();
  auto far = makeTcpPair();
  Cable cable(std::move(near.second), std::move(far.first), [&](int from, std::span<char> bytes) {
    if (from == 0 && counts && (counted += bytes.size()) == 2 * kRecord) {
      bytes.back() ^= 1;
    }
  });
  Ends ends = secured({std::move(near.first), std::move(far.second)});
  constexpr std::array<std::uint64_t, internal::kNumLanes> kCapacities = {4096, 4096, 4096};
  FrameStream sender(std::move(ends.client), kCapacities), receiver(std::move(ends.server), kCapacities);
  counts = true;
  bool moved = false;
  for (int i = 0; i < 2; ++i) {
    std::memset(sender.writer(Lane::kBulk).reserve(16, 16).data(), 'x', 16);
    sender.writer(Lane::kBulk).commit(16);
    ASSERT_TRUE(sender.flush(&moved).isOk());
  }
  int there = 0;
  for (const Deadline limit = soon(); there < static_cast<int>(2 * kRecord);) {
    ASSERT_LT(Clock::now(), limit) << there;
    ASSERT_EQ(::ioctl(receiver.socket().get(), FIONREAD, &there), 0);
  }
  expectWords(receiver.receive(&moved), StatusCode::kMismatch, "sent bytes that TLS rejects");
  EXPECT_FALSE(receiver.reader(Lane::kBulk).peek().empty());
}

TEST(TcpTls, AFlippedBitFailsBothRanks) {
  CabledRanks pair;
  ASSERT_TRUE(pair.ranks[0].status.isOk()) << pair.ranks[0].status.message();
  pair.cable->flipNext();
  pair.send("a tensor of sixteen");
  ASSERT_TRUE(
      pair.pollUntil([&] { return !pair.connection(0).health().isOk() && !pair.connection(1).health().isOk(); }));
  EXPECT_TRUE(pair.connection(0).peek(Lane::kBulk).empty());
  expectWords(pair.connection(0).health(), StatusCode::kPeerFailed, "rank 1 sent bytes that TLS rejects");
  expectWords(pair.connection(0).health(), StatusCode::kPeerFailed, "(the stream of frames, tcp near end)");
  // A kernel that encrypts cannot be given OpenSSL's alert, and the reason comes over the other stream.
  const bool isSentByKernel = pair.connection(1).describe().find("sent by the kernel") != std::string::npos;
  expectWords(
      pair.connection(1).health(), StatusCode::kPeerFailed,
      isSentByKernel ? "rank 1 sent bytes that TLS rejects" : "rank 0 rejects bytes of TLS that came from here");
}

// With a right checksum: only the handshake can find the change.
TEST(TcpTls, ASetUpChangedByAnAttackerFailsTheHandshake) {
  bool isChanged = false;
  CabledRanks pair([&](int from, std::span<char> bytes) {
    const std::size_t size = FakeDialer::setup().size();
    if (from == 0 && !isChanged && bytes.size() >= 4 + size) {
      char* const setup = bytes.data() + 4;  // behind its length
      setup[size - 4 - 5 - 2] ^= 1;          // "wants checksums", before the wish for TLS and the status
      const std::uint32_t sum = internal::crc32c(setup, size - 4);
      std::memcpy(setup + size - 4, &sum, 4);
      isChanged = true;
    }
  });
  EXPECT_TRUE(isChanged);
  for (const TcpRank& rank : pair.ranks) {
    EXPECT_FALSE(rank.status.isOk());
    EXPECT_NE(rank.status.message().find("TLS handshake"), std::string::npos) << rank.status.message();
  }
}

}  // namespace
}  // namespace shardwire::testing
