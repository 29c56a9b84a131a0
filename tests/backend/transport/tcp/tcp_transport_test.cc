// The contract over TCP, and tests of TCP alone. First the endpoint: joined ranks, foreign processes, peers that give
// up or die, their reasons, deadlines. Then the connection: forged and broken fetches, foreign bytes, idle wires, busy
// peers, paths that lose packets, and a peer killed during a fetch.
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/base/wire.h"
#include "tests/backend/transport/contract.h"
#include "tests/backend/transport/contract_fetch.h"
#include "tests/backend/transport/tcp/fake_dialer.h"
#include "tests/support/net_namespaces.h"

namespace shardwire::testing {
namespace {

Options overTcp() {
  Options options;
  options.transports = "tcp";
  options.socketIfname = "lo";
  return options;
}

Options smallRings() {
  Options options = overTcp();
  options.ringBytes = std::size_t{16} << 10;
  options.inlineBytes = 0;
  return options;
}

Options withChecksums() {
  Options options = overTcp();
  options.tcpCrc = true;
  return options;
}

Options withTls() {
  Options options = overTcp();
  options.tcpTls = TcpTls::kOn;
  return options;
}

// Two hosts for the whole suite, made when first needed; ranks are on the two hosts in turn.
std::unique_ptr<NetNamespaces> twoHosts;

const char* prepareTwoHosts() {
  static std::string whyNot;
  if (twoHosts == nullptr && whyNot.empty()) {
    twoHosts = NetNamespaces::create(NetNamespaces::Addresses::kIpv6, &whyNot);
  }
  return twoHosts == nullptr ? whyNot.c_str() : nullptr;
}

void enterInTurn(Rank rank) {
  twoHosts->enter(rank % 2);
}

TransportFixture acrossHosts() {
  Options options;
  options.transports = "tcp";
  return {"TwoHosts", true, options, true, &prepareTwoHosts, &enterInTurn};
}

// Processes and network namespaces run the code that threads run, and the other ways differ by bytes on the wire only,
// where TSan detects no more.
#if defined(__SANITIZE_THREAD__)
constexpr bool kHasOtherBytes = false;
constexpr bool kHasProcesses = false;
#elif defined(__SANITIZE_ADDRESS__)
constexpr bool kHasOtherBytes = true;
constexpr bool kHasProcesses = false;
#else
constexpr bool kHasOtherBytes = true;
constexpr bool kHasProcesses = true;
#endif

std::vector<TransportFixture> fixtures() {
  std::vector<TransportFixture> all = {{"Threads", false, overTcp(), true}, {"Tls", true, withTls(), true}};
  if (kHasOtherBytes) {
    all.push_back({"SmallRings", true, smallRings(), true});
    all.push_back({"Checksums", true, withChecksums(), true});
  }
  if (kHasProcesses) {
    all.push_back({"Processes", true, overTcp(), true});
    all.push_back(acrossHosts());
  }
  return all;
}

const auto kFixtures = ::testing::ValuesIn(fixtures());
std::string nameOf(const ::testing::TestParamInfo<TransportFixture>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Tcp, TransportContract, kFixtures, nameOf);
INSTANTIATE_TEST_SUITE_P(Tcp, WireContract, kFixtures, nameOf);

// With a token bytes between hosts are encrypted, without one or within a host they are not, unless an option says so.
TEST(TcpEndpoint, EncryptsBetweenHostsIfTheJobHasAToken) {
  if (const char* whyNot = prepareTwoHosts(); whyNot != nullptr) {
    GTEST_SKIP() << "no two hosts here: " << whyNot;
  }
  for (const bool hasToken : {true, false}) {
    for (const bool isWithinHost : {true, false}) {
      const auto store = std::make_unique<MemoryStore>();
      runRanksAsProcesses(2, [&](Rank rank) {
        Options options;
        options.transports = "tcp";
        options.jobToken = hasToken ? "secret" : "";
        twoHosts->enter(isWithinHost ? 0 : rank);
        auto peers =
            internal::connectPeers(*store, rank, 2, options, Clock::now() + std::chrono::seconds(20), "encrypts");
        ASSERT_TRUE(peers.isOk()) << peers.status().message();
        ownPeers = &*peers;
        Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
        const bool isEncrypted = connection.describe().find(", TLS 1.3") != std::string::npos;
        EXPECT_EQ(isEncrypted, hasToken && !isWithinHost) << connection.describe();
        meet(connection);
        ownPeers = nullptr;
      });
    }
  }
}

TEST(TcpEndpoint, JoinsTwoRanks) {
  TcpRanks pair;
  pair.join();
  ASSERT_TRUE(pair.ranks[0].status.isOk() && pair.ranks[1].status.isOk()) << pair.ranks[0].status.message();
  std::memcpy(pair.connection(0).reserve(Lane::kBulk, 8, 8).data(), "12345678", 8);
  pair.connection(0).commit(Lane::kBulk, 8);
  ASSERT_TRUE(pair.pollUntil([&] { return !pair.connection(1).peek(Lane::kBulk).empty(); }));
  EXPECT_EQ(std::memcmp(pair.connection(1).peek(Lane::kBulk).data(), "12345678", 8), 0);
  EXPECT_EQ(pair.connection(1).describe(), "rank 0: tcp, far end");
}

TEST(TcpEndpoint, RejectsForeignProcessesThatFindThePort) {
  FakeDialer dialer;
  const std::uint16_t port = dialer.greet();
  const Fd silent = dialer.call(port);
  const Fd garbage = dialer.call(port);
  EXPECT_TRUE(internal::sendSome(garbage, "GET / HTTP/1.1\r\n\r\n").isOk());
  const Fd forged = dialer.call(port);
  EXPECT_TRUE(internal::sendSome(forged, internal::framed(std::string(32, 'x'))).isOk());
  const Fd right = dialer.call(port);
  dialer.prove(right);
  dialer.agree(right);
  dialer.finish();
  EXPECT_TRUE(dialer.real.status.isOk()) << dialer.real.status.message();
}

TEST(TcpEndpoint, OtherLaneLengthsAreAnErrorOnBothSides) {
  TcpRanks pair;
  pair.ranks[1].options.ringBytes *= 2;
  pair.join();
  for (const TcpRank& rank : pair.ranks) {
    expectWords(rank.status, StatusCode::kMismatch, "SHARDWIRE_RING_BYTES");
  }
}

TEST(TcpEndpoint, APeerThatGivesUpIsNoticedBeforeTheDeadline) {
  FakeDialer dialer;
  dialer.greet();
  ::shutdown(dialer.link().socket().get(), SHUT_RDWR);
  dialer.finish();
  EXPECT_EQ(dialer.real.status.code(), StatusCode::kPeerFailed) << dialer.real.status.message();
}

// The dead peer has received the dialer's set-up, and its port has no listener. The dialer must neither try another
// transport, nor mention firewalls.
TEST(TcpEndpoint, APeerThatDiesBeforeTheSecondSocketIsGone) {
  auto [near, far] = makeLinkPair();
  const Options options;
  auto listening = internal::makeTcpEndpoint({0, 2, "host", &options});
  auto dialing = internal::makeTcpEndpoint({1, 2, "host", &options});
  ASSERT_TRUE(listening.isOk() && dialing.isOk());
  auto listener = (*listening)->begin(std::move(far), 1, false, (*dialing)->address(), "rank 1");
  const auto dialer = (*dialing)->begin(std::move(near), 0, true, (*listening)->address(), "rank 0");
  std::vector<pollfd> entries;
  listener->appendSockets(&entries);
  ASSERT_GT(internal::WaitLimit(soon()).poll(entries).value(), 0);
  EXPECT_FALSE(listener->step().has_value());
  listener.reset();
  std::optional<internal::Joining::Outcome> outcome;
  while (!(outcome = dialer->step()).has_value()) {
    entries.clear();
    dialer->appendSockets(&entries);
    ASSERT_GT(internal::WaitLimit(soon()).poll(entries).value(), 0);
  }
  EXPECT_EQ(outcome->status().code(), StatusCode::kPeerFailed) << outcome->status().message();
}

// Both ends of a set-up in one thread.
class TwoJoinings {
 public:
  TwoJoinings() {
    auto [near, far] = makeLinkPair();
    listener = endpoints_[0]->begin(std::move(far), 1, false, "", "rank 1");
    dialer = endpoints_[1]->begin(std::move(near), 0, true, "", "rank 0");
  }
  static internal::Joining::Outcome outcomeOf(internal::Joining& joining) {
    std::optional<internal::Joining::Outcome> outcome;
    for (const Deadline until = soon(); !(outcome = joining.step()).has_value() && Clock::now() < until;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return outcome.has_value() ? std::move(*outcome) : internal::Joining::Outcome(Status{StatusCode::kTimeout, ""});
  }
  // Steps without an outcome, until one of the words stands in what the end awaits.
  static void stepUntil(internal::Joining& joining, const std::string& words) {
    for (const Deadline until = soon(); joining.awaited().find(words) == std::string::npos && Clock::now() < until;) {
      ASSERT_FALSE(joining.step().has_value());
    }
  }
  std::unique_ptr<internal::Wire> takeWire(std::size_t rank) { return endpoints_[rank]->takeWire(); }

 private:
  const Options options_;
  std::unique_ptr<internal::Endpoint> endpoints_[2] = {
      std::move(*internal::makeTcpEndpoint({0, 2, "host", &options_})),
      std::move(*internal::makeTcpEndpoint({1, 2, "host", &options_}))};

 public:
  std::unique_ptr<internal::Joining> listener;
  std::unique_ptr<internal::Joining> dialer;
};

TEST(TcpEndpoint, ALongReasonArrivesCutWithItsCode) {
  const Status why{StatusCode::kUnsupported, "the reason: " + std::string(2000, 'x')};
  TwoJoinings both;
  TwoJoinings::stepUntil(*both.listener, "second socket");
  both.listener->giveUp(why);
  EXPECT_EQ(TwoJoinings::outcomeOf(*both.listener).status(), why);
  both.listener.reset();
  const Status received = TwoJoinings::outcomeOf(*both.dialer).status();
  EXPECT_EQ(received.code(), why.code());
  EXPECT_EQ(received.message(), why.message().substr(0, 1024));

  auto [near, far] = makeLinkPair();
  const Options options;
  const auto endpoint = internal::makeTcpEndpoint({1, 2, "host", &options});
  ASSERT_TRUE(endpoint.isOk());
  (*endpoint)->refuse(std::move(far), why);
  const auto refused = (*endpoint)->begin(std::move(near), 0, true, "", "rank 0");
  EXPECT_EQ(TwoJoinings::outcomeOf(*refused).status().message(), why.message().substr(0, 1024));
}

// The listener has agreed and awaits the dialer's verdict. The dialer takes the agreement and has a connection.
TEST(TcpEndpoint, AnEndThatAgreedAndGivesUpClosesOnly) {
  TwoJoinings both;
  TwoJoinings::stepUntil(*both.dialer, "proof");
  ASSERT_FALSE(both.listener->step().has_value());  // takes the set-up, which has arrived
  TwoJoinings::stepUntil(*both.listener, "answer over the link");
  both.listener->giveUp({StatusCode::kPeerFailed, "rank 2 died"});
  expectWords(TwoJoinings::outcomeOf(*both.listener).status(), StatusCode::kPeerFailed, "rank 2 died");
  both.listener.reset();
  auto joined = TwoJoinings::outcomeOf(*both.dialer);
  ASSERT_TRUE(joined.isOk()) << joined.status().message();
  const auto connection = std::move(*joined);
  const auto wire = both.takeWire(1);
  for (const Deadline until = soon(); connection->health().isOk() && Clock::now() < until;) {
    wire->poll();
  }
  expectWords(connection->health(), StatusCode::kPeerFailed, "closed the connection");
}

TEST(TcpEndpoint, ADialerThatCannotComeBackSaysWhy) {
  FakeDialer dialer;
  const Fd silent = dialer.call(dialer.greet());  // a foreign process does not hide the error
  internal::ByteWriter verdict;
  verdict.u8(static_cast<std::uint8_t>(StatusCode::kSystem));
  verdict.text("a firewall");
  ASSERT_TRUE(dialer.link().send(verdict.bytes(), soon()).isOk());
  dialer.finish();
  expectWords(dialer.real.status, StatusCode::kPeerFailed, "the peer has no second socket: a firewall");
}

TEST(TcpEndpoint, HoldsItsDeadline) {
  auto [near, far] = makeLinkPair();
  TcpRank rank;
  const auto start = Clock::now();
  rank.join(std::move(far), 0, 1, false, start + std::chrono::milliseconds(50));
  EXPECT_EQ(rank.status.code(), StatusCode::kTimeout) << rank.status.message();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST(TcpEndpoint, WantOfDescriptorsIsAnErrorThatSaysSo) {
  runRanksAsProcesses(1, [](Rank) {
    TcpRank rank;
    auto [near, far] = makeLinkPair();
    std::vector<Fd> all;
    const rlimit few{64, 64};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) {
      all.emplace_back(fd);
    }
    rank.join(std::move(far), 0, 1, false);
    expectWords(rank.status, StatusCode::kSystem, "ulimit -n");
  });
}

TEST(TcpConnection, AForgedFetchIsRefusedAndReported) {
  TcpRanks pair;
  pair.join();
  std::vector<std::byte> memory(4096);
  internal::RemoteAddress address;
  ASSERT_EQ(pair.connection(0).expose(memory.data(), 100, &address), Reach::kFetch);
  const MemoryRun beyond{memory.data() + 2048, address.value + 96, 8};
  FetchCount count;
  ASSERT_TRUE(pair.connection(1).fetch(address.space, {&beyond, 1}, &count));
  ASSERT_TRUE(
      pair.pollUntil([&] { return !pair.connection(0).health().isOk() && !pair.connection(1).health().isOk(); }));
  expectWords(pair.connection(0).health(), StatusCode::kPeerFailed, "rank 1 sent a request for 8 bytes");
  expectWords(pair.connection(1).health(), StatusCode::kPeerFailed, "rank 0 refused a request for 8 bytes");
  EXPECT_EQ(count.pending, 1U);
}

TEST(TcpConnection, ABrokenStreamOfFetchesIsAFailureUnlessThePeerStopped) {
  FakeDialer dialer;
  Fd socket = dialer.join();
  socket.reset();
  const Status failure = dialer.awaitFailure();
  expectWords(failure, StatusCode::kPeerFailed, "the connection for fetches from rank 1");
  expectWords(failure, StatusCode::kPeerFailed, "no reason came on the other connection");
  // The other stream works: there the peer gets the reason, and the end.
  EXPECT_NE(dialer.lastFrames().find("the connection: the connection for fetches from rank 1"), std::string::npos);

  TcpRanks pair;
  pair.join();
  EXPECT_TRUE(pair.connection(0).stopFetches());
  const auto start = Clock::now();
  ASSERT_TRUE(pair.pollUntil([&] { return Clock::now() - start > std::chrono::milliseconds(2500); }));
  EXPECT_TRUE(pair.connection(1).health().isOk()) << pair.connection(1).health().message();
  internal::RemoteAddress address;
  EXPECT_EQ(pair.connection(1).expose(&address, sizeof(address), &address), Reach::kNone);
}

TEST(TcpConnection, SomebodyElsesBytesAreAFailure) {
  FakeDialer dialer;
  const Fd fetches = dialer.join();
  ASSERT_EQ(*internal::sendSome(dialer.link().socket(), "GET / HTTP/1.1\r\n\r\n"), 18U);
  expectWords(dialer.awaitFailure(), StatusCode::kPeerFailed, "rank 1 sent");
}

// The unit is right, its frame is not. The ring is marked as broken when the frame is used, and no byte follows.
TEST(TcpConnection, AMalformedFrameAtTheEndIsAFailureOnBothSides) {
  FakeDialer dialer;
  const Fd fetches = dialer.join();
  internal::ByteWriter unit;
  unit.u8(1);  // frames
  unit.u8(static_cast<std::uint8_t>(Lane::kBulk));
  unit.u8(0);
  unit.u8(0);
  unit.u32(16);
  unit.u32(8);
  unit.u32(0x12345678);  // of no kind
  unit.u64(0);
  ASSERT_EQ(*internal::sendSome(dialer.link().socket(), unit.bytes()), 24U);
  Connection& connection = *dialer.real.connection;
  for (const Deadline until = soon(); connection.health().isOk() && Clock::now() < until;) {
    dialer.real.wire->poll();
    EXPECT_TRUE(connection.peek(Lane::kBulk).empty());
  }
  expectWords(connection.health(), StatusCode::kPeerFailed, "rank 1 sent a malformed frame");
  EXPECT_NE(dialer.lastFrames().find("the stream of frames: rank 1 sent a malformed frame"), std::string::npos);
}

TEST(TcpConnection, AnIdleWireIsNotReadable) {
  TcpRanks pair;
  pair.join();
  pair.poll();
  pollfd entry{pair.ranks[0].wire->readinessFd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  // A full lane without a reader is no reason to stay awake, either.
  while (!pair.connection(1).reserve(Lane::kBulk, 100, 100).empty()) {
    pair.connection(1).commit(Lane::kBulk, 100);
    pair.poll();
  }
  for (const auto start = Clock::now(); Clock::now() - start < std::chrono::milliseconds(50);) {
    pair.poll();
  }
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  EXPECT_FALSE(pair.ranks[0].wire->poll());
}

// A computing rank reads nothing for as long as it likes. The rank's host answers for the rank.
TEST(TcpConnection, APeerThatIsBusyIsNoFailure) {
  TcpRanks pair;
  pair.join();
  Connection& connection = pair.connection(0);
  std::vector<std::byte> memory(std::size_t{64} << 20);
  internal::RemoteAddress address;
  ASSERT_EQ(connection.expose(memory.data(), memory.size(), &address), Reach::kFetch);
  FetchCount count;
  std::vector<std::byte> copy(memory.size());
  const MemoryRun all{copy.data(), address.value, memory.size()};
  ASSERT_TRUE(pair.connection(1).fetch(address.space, {&all, 1}, &count));
  const std::size_t size = connection.maxFrameBytes(Lane::kBulk);
  while (!connection.reserve(Lane::kBulk, size, size).empty()) {
    connection.commit(Lane::kBulk, size);
  }
  for (const auto start = Clock::now(); Clock::now() - start < std::chrono::seconds(10);) {
    pair.ranks[0].wire->poll();
    ASSERT_TRUE(connection.health().isOk()) << connection.health().message();
    pollfd entry{pair.ranks[0].wire->readinessFd(), POLLIN, 0};
    ::poll(&entry, 1, 5);
  }
  EXPECT_TRUE(pair.pollUntil([&] { return count.pending == 0; }));
}

// Every TCP socket of this process loses arriving packets longer than `bytes`.
void losePacketsLongerThan(std::uint32_t bytes) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, bytes, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, 0), BPF_STMT(BPF_RET | BPF_K, 0xffffffff)};
  const sock_fprog program{4, code};
  for (int fd = 0; fd < 1024; ++fd) {
    int protocol = 0;
    socklen_t size = sizeof(protocol);
    if (::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 && protocol == IPPROTO_TCP) {
      ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
    }
  }
}

// On such paths routers do not report that a packet is too long. Frames, which are short, get through all the time.
TEST(TcpConnection, APathThatLosesOnlyLongPacketsIsAFailure) {
  runRanksAsProcesses(1, [](Rank) {
    TcpRanks pair;
    pair.join();
    losePacketsLongerThan(600);
    std::vector<std::byte> memory(std::size_t{64} << 20);
    internal::RemoteAddress address;
    ASSERT_EQ(pair.connection(0).expose(memory.data(), memory.size(), &address), Reach::kFetch);
    FetchCount count;
    std::vector<std::byte> copy(memory.size());
    const MemoryRun all{copy.data(), address.value, memory.size()};
    ASSERT_TRUE(pair.connection(1).fetch(address.space, {&all, 1}, &count));
    std::size_t numFrames = 0;
    for (const auto start = Clock::now(); pair.connection(0).health().isOk(); pair.poll()) {
      ASSERT_LT(Clock::now() - start, std::chrono::seconds(20)) << "the lost packets were not noticed";
      if (!pair.connection(0).reserve(Lane::kBulk, 8, 8).empty()) {
        pair.connection(0).commit(Lane::kBulk, 8);
      }
      if (!pair.connection(1).peek(Lane::kBulk).empty()) {
        pair.connection(1).release(Lane::kBulk);
        ++numFrames;
      }
      pollfd entry{pair.ranks[0].wire->readinessFd(), POLLIN, 0};
      ::poll(&entry, 1, 5);
    }
    expectWords(pair.connection(0).health(), StatusCode::kPeerFailed, "the peer has acknowledged nothing for");
    EXPECT_EQ(count.pending, 1U);
    EXPECT_GT(numFrames, 100U);
  });
}

TEST(TcpConnection, APeerKilledInTheMiddleOfAFetchIsNamed) {
  constexpr std::size_t kSize = std::size_t{256} << 20;
  MemoryStore store;
  runRanksAsProcesses(2,
                      [&](Rank rank) {
                        auto peers = internal::connectPeers(store, rank, 2, overTcp(),
                                                            Clock::now() + std::chrono::seconds(20), "killed");
                        ASSERT_TRUE(peers.isOk()) << peers.status().message();
                        ownPeers = &*peers;
                        Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
                        std::vector<std::byte> memory(kSize);
                        if (rank == 1) {
                          Exposed exposed{{}, Reach::kNone, kSize};
                          exposed.reach = connection.expose(memory.data(), kSize, &exposed.address);
                          sendFrame(connection, Lane::kControl, &exposed, sizeof(exposed));
                          ASSERT_FALSE(awaitFrame(connection, Lane::kPoint).empty());  // the first bytes arrived
                          ::kill(::getpid(), SIGKILL);
                        }
                        Exposed exposed;
                        const auto frame = awaitFrame(connection, Lane::kControl);
                        ASSERT_EQ(frame.size(), sizeof(exposed));
                        std::memcpy(&exposed, frame.data(), sizeof(exposed));
                        FetchCount count;
                        const MemoryRun all{memory.data(), exposed.address.value, kSize};
                        std::fill(memory.begin(), memory.begin() + 4096, std::byte{1});
                        startFetch(connection, exposed, {&all, 1}, &count);
                        while (memory[4095] != std::byte{0} && connection.health().isOk()) {
                          pollWires();
                        }
                        sendFrame(connection, Lane::kPoint, "k", 1);
                        Status failure;
                        awaitFailure(connection, &failure);
                        expectWords(failure, StatusCode::kPeerFailed, "rank 1 (pid");
                        expectWords(failure, StatusCode::kPeerFailed, "died");
                        EXPECT_EQ(count.pending, 1U);
                        ownPeers = nullptr;
                      },
                      kRankTimeLimit, {1});
}

}  // namespace
}  // namespace shardwire::testing
