// Links: who gets one, who is turned away, and that strangers hold up nobody.
#include "backend/transport/link.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "backend/transport/interfaces.h"
#include "backend/transport/link_message.h"
#include "backend/transport/net_socket.h"
#include "tests/support/hex.h"

namespace shardwire::internal {
namespace {

using testing::toHex;

constexpr RandomId kToken{{0x1111, 0x2222}};
constexpr int kWorldSize = 4;
constexpr Rank kListener = 1;
const LinkHello kHello{3, kListener, kWorldSize, 3};

Deadline soon() {
  return Clock::now() + std::chrono::seconds(10);
}

Options onLoopback() {
  Options options;
  options.socketIfname = "lo";
  return options;
}

// A listener of rank 1 that answers on a thread of its own until it goes.
class Listening {
 public:
  explicit Listening(const Options& options = onLoopback(), Deadline deadline = soon()) : deadline_(deadline) {
    auto made = LinkListener::create(options, 4);
    EXPECT_TRUE(made.isOk()) << made.status().message();
    listener_.emplace(std::move(*made));
    addresses_ = listener_->addresses();
    thread_ = std::thread([this] { answer(); });
  }
  ~Listening() { finish(); }

  const std::vector<NetAddress>& addresses() const { return addresses_; }
  std::vector<NetAddress> only(bool ipv6) const {
    std::vector<NetAddress> found;
    for (const NetAddress& each : addresses_) {
      if ((each.ip.find(':') != std::string::npos) == ipv6) {
        found.push_back(each);
      }
    }
    return found;
  }
  // Ends the thread; the links that it accepted.
  std::vector<LinkListener::Accepted>& finish() {
    stop_ = true;
    if (thread_.joinable()) {
      thread_.join();
    }
    return accepted_;
  }
  int numAccepted() const { return numAccepted_; }

 private:
  void answer() {
    while (!stop_) {
      pollfd entry{listener_->sockets()[0].get(), POLLIN, 0};
      ::poll(&entry, 1, 10);
      auto accepted = listener_->accept(kToken, kListener, kWorldSize, deadline_);
      EXPECT_TRUE(accepted.isOk()) << accepted.status().message();
      for (LinkListener::Accepted& each : *accepted) {
        accepted_.push_back(std::move(each));
        ++numAccepted_;
      }
    }
  }

  const Deadline deadline_;
  std::optional<LinkListener> listener_;
  std::vector<NetAddress> addresses_;
  std::vector<LinkListener::Accepted> accepted_;
  std::atomic<int> numAccepted_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A socket to the listener that has said nothing yet.
Fd callFrom(const std::vector<NetAddress>& addresses) {
  const auto address = makeSocketAddress(addresses.at(0).ip, addresses.at(0).scope, addresses.at(0).port);
  auto socket = startTcp(*address);
  EXPECT_TRUE(socket.isOk()) << socket.status().message();
  EXPECT_TRUE(waitForSocket(*socket, POLLOUT, soon(), "calling").isOk());
  return std::move(*socket);
}

LinkMessage say(LinkMessageType type) {
  LinkMessage message;
  message.type = type;
  return message;
}

LinkMessage hello(const LinkHello& ranks, const Challenge& challenge) {
  LinkMessage message = say(LinkMessageType::kHello);
  message.hello = ranks;
  message.challenge = challenge;
  return message;
}

Status send(Link& link, const LinkMessage& message) {
  return link.send(encodeLinkMessage(message), soon());
}

LinkMessage receive(Link& link) {
  const auto bytes = link.receive(soon());
  EXPECT_TRUE(bytes.isOk()) << bytes.status().message();
  const auto message = decodeLinkMessage(bytes.isOk() ? *bytes : "");
  EXPECT_TRUE(message.isOk()) << message.status().message();
  return message.isOk() ? *message : LinkMessage{};
}

// The link is refused with these words, and then hung up.
void expectRefusal(Link& link, const std::string& words) {
  const LinkMessage refusal = receive(link);
  EXPECT_EQ(refusal.type, LinkMessageType::kRefusal);
  EXPECT_NE(refusal.refusal.message().find(words), std::string::npos) << refusal.refusal.message();
  EXPECT_EQ(link.receive(soon()).status().code(), StatusCode::kPeerFailed);
}

TEST(Link, TwoRanksWithOneTokenAreJoined) {
  Listening listening;
  auto link = dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon());
  ASSERT_TRUE(link.isOk()) << link.status().message();
  auto& accepted = listening.finish();
  ASSERT_EQ(accepted.size(), 1U);
  EXPECT_EQ(accepted[0].hello, kHello);
  // Messages go both ways, empty and the longest; one behind the other.
  const std::string longest(Link::kMaxMessageBytes, 'x');
  std::thread sender([&] {
    EXPECT_TRUE(link->send("", soon()).isOk());
    EXPECT_TRUE(link->send(longest, soon()).isOk());
    EXPECT_TRUE(link->send("end", soon()).isOk());
  });
  EXPECT_EQ(*accepted[0].link.receive(soon()), "");
  EXPECT_EQ(*accepted[0].link.receive(soon()), longest);
  EXPECT_EQ(*accepted[0].link.receive(soon()), "end");
  sender.join();
  ASSERT_TRUE(accepted[0].link.send("answer", soon()).isOk());
  EXPECT_EQ(*link->receive(soon()), "answer");
  // Both know a secret that was never sent, of this link alone.
  EXPECT_EQ(link->secret(), accepted[0].link.secret());
  EXPECT_NE(link->secret(), Digest{});
  EXPECT_NE(link->remote().find("127.0.0.1:"), std::string::npos) << link->remote();
}

TEST(Link, SecretsOfTwoLinksDiffer) {
  Listening listening;
  const auto a = dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon());
  const auto b = dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon());
  ASSERT_TRUE(a.isOk() && b.isOk());
  EXPECT_NE(a->secret(), b->secret());
}

TEST(Link, AnotherTokenIsTurnedAway) {
  Listening listening;
  const auto wrong = dialLink(listening.addresses(), RandomId{{0x1111, 0x2223}}, kHello, onLoopback(), soon());
  EXPECT_EQ(wrong.status().code(), StatusCode::kMismatch);
  EXPECT_NE(wrong.status().message().find("does not know the group's token"), std::string::npos) << wrong.status().message();
  Options options = onLoopback();
  options.jobToken = "secret";
  EXPECT_EQ(dialLink(listening.addresses(), kToken, kHello, options, soon()).status().code(), StatusCode::kMismatch);
  EXPECT_TRUE(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).isOk());
  EXPECT_EQ(listening.finish().size(), 1U);
}

TEST(Link, EqualJobTokensJoin) {
  Options options = onLoopback();
  options.jobToken = "secret";
  Listening listening(options);
  EXPECT_TRUE(dialLink(listening.addresses(), kToken, kHello, options, soon()).isOk());
  EXPECT_EQ(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).status().code(), StatusCode::kMismatch);
}

TEST(Link, RanksThatDoNotFitAreTurnedAwayWithTheReason) {
  Listening listening;
  const std::pair<LinkHello, const char*> cases[] = {{{3, 2, kWorldSize, 3}, "found rank 1"},
                                                     {{3, 1, 8, 3}, "rank 3 of 8"},
                                                     {{4, 1, kWorldSize, 3}, "calls itself rank 4 of 4"},
                                                     {{-1, 1, kWorldSize, 3}, "calls itself rank -1"},
                                                     {{1, 1, kWorldSize, 3}, "calls itself rank 1"}};
  for (const auto& [ranks, words] : cases) {
    const auto link = dialLink(listening.addresses(), kToken, ranks, onLoopback(), soon());
    EXPECT_EQ(link.status().code(), StatusCode::kMismatch);
    EXPECT_NE(link.status().message().find(words), std::string::npos) << link.status().message();
  }
  EXPECT_TRUE(listening.finish().empty());
}

TEST(Link, AForgedProofIsTurnedAway) {
  Listening listening;
  Link stranger(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(stranger, hello(kHello, {})).isOk());
  EXPECT_EQ(receive(stranger).type, LinkMessageType::kChallenge);
  ASSERT_TRUE(send(stranger, say(LinkMessageType::kProof)).isOk());
  expectRefusal(stranger, "does not know the group's token");
  EXPECT_TRUE(listening.finish().empty());
}

// A proof of one link, played back on another: the listener's challenge is a new one.
TEST(Link, ARecordedSessionDoesNotOpenAnother) {
  const LinkKey key = makeLinkKey(kToken, "");
  Listening listening;
  const auto open = [&](const Digest* recorded) -> Digest {
    Link link(callFrom(listening.addresses()), "listener");
    EXPECT_TRUE(send(link, hello(kHello, {})).isOk());
    const LinkMessage challenge = receive(link);
    LinkMessage proof = say(LinkMessageType::kProof);
    proof.proof = recorded != nullptr ? *recorded : proveLink(key, LinkRole::kDialer, kHello, {}, challenge.challenge);
    EXPECT_TRUE(send(link, proof).isOk());
    if (recorded != nullptr) {
      expectRefusal(link, "does not know the group's token");
    } else {
      EXPECT_EQ(receive(link).type, LinkMessageType::kWelcome);
    }
    return proof.proof;
  };
  const Digest good = open(nullptr);
  open(&good);
  EXPECT_EQ(listening.finish().size(), 1U);
}

// Who claims other ranks than the proof is for.
TEST(Link, AProofHoldsForItsRanksOnly) {
  const LinkKey key = makeLinkKey(kToken, "");
  Listening listening;
  Link link(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(link, hello({2, kListener, kWorldSize, 3}, {})).isOk());
  LinkMessage proof = say(LinkMessageType::kProof);
  proof.proof = proveLink(key, LinkRole::kDialer, kHello, {}, receive(link).challenge);
  ASSERT_TRUE(send(link, proof).isOk());
  expectRefusal(link, "does not know the group's token");
}

// A false listener that answers every dialer with what the dialer said: its challenge, its proof.
TEST(Link, ReflectionDoesNotConvinceADialer) {
  auto listener = listenTcp(*makeSocketAddress("127.0.0.1", 0, 0), 4);
  ASSERT_TRUE(listener.isOk());
  std::thread mirror([&] {
    EXPECT_TRUE(waitForSocket(*listener, POLLIN, soon(), "waiting").isOk());
    auto socket = acceptTcp(*listener);
    ASSERT_TRUE(socket.isOk() && socket->isOpen());
    Link link(std::move(*socket), "dialer");
    LinkMessage challenge = say(LinkMessageType::kChallenge);
    challenge.challenge = receive(link).challenge;
    EXPECT_TRUE(send(link, challenge).isOk());
    LinkMessage welcome = say(LinkMessageType::kWelcome);
    welcome.proof = receive(link).proof;
    EXPECT_TRUE(send(link, welcome).isOk());
    EXPECT_FALSE(link.receive(soon()).isOk());
  });
  const NetAddress address{"127.0.0.1", 0, localAddress(*listener)->port(), "lo"};
  const auto link = dialLink({&address, 1}, kToken, kHello, onLoopback(), soon());
  EXPECT_EQ(link.status().code(), StatusCode::kMismatch);
  EXPECT_NE(link.status().message().find("does not know the group's token"), std::string::npos) << link.status().message();
  mirror.join();
}

TEST(Link, SilentStrangersHoldUpNobody) {
  Listening listening;
  std::vector<Fd> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(callFrom(listening.addresses()));
  }
  Link halfSaid(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(halfSaid, hello(kHello, {})).isOk());
  const auto start = Clock::now();
  const auto link = dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon());
  ASSERT_TRUE(link.isOk()) << link.status().message();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));  // each of them may stay for 10 s
  EXPECT_EQ(listening.finish().size(), 1U);
}

TEST(Link, ASilentStrangerIsTurnedAwayInTheEnd) {
  Listening listening(onLoopback(), Clock::now() + std::chrono::milliseconds(100));
  Link stranger(callFrom(listening.addresses()), "listener");
  expectRefusal(stranger, "said too little");
}

TEST(Link, ManyStrangersDoNotUseUpTheListener) {
  Listening listening;
  std::vector<Fd> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(callFrom(listening.addresses()));
  }
  EXPECT_TRUE(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).isOk());
}

TEST(Link, GarbageIsTurnedAway) {
  Listening listening;
  const std::string garbled = encodeLinkMessage(hello(kHello, {})).substr(0, 20);
  const std::string http = "GET / HTTP/1.1\r\nHost: shardwire\r\n\r\n";
  for (const std::string& bytes : {http, std::string(64, '\0'), std::string(4, '\xff'), framed(garbled), framed("SWLK")}) {
    const Fd socket = callFrom(listening.addresses());
    ASSERT_EQ(*sendSome(socket, bytes), bytes.size());
    std::string answer(4096, '\0');
    ssize_t size = 0;
    do {  // a refusal, then the end
      ASSERT_TRUE(waitForSocket(socket, POLLIN, soon(), "waiting to be turned away").isOk());
      size = ::recv(socket.get(), answer.data(), answer.size(), 0);
    } while (size > 0);
  }
  EXPECT_TRUE(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).isOk());
  EXPECT_EQ(listening.finish().size(), 1U);
}

TEST(Link, AnotherVersionIsToldSo) {
  Listening listening;
  Link link(callFrom(listening.addresses()), "listener");
  std::string bytes = encodeLinkMessage(hello(kHello, {}));
  bytes[4] = 9;
  ASSERT_TRUE(link.send(bytes, soon()).isOk());
  expectRefusal(link, "speaks version 9 of the link protocol");
}

TEST(Link, AWelcomeComesLastOrNotAtAll) {
  Listening listening;
  for (const LinkMessageType first : {LinkMessageType::kProof, LinkMessageType::kWelcome, LinkMessageType::kChallenge}) {
    Link link(callFrom(listening.addresses()), "listener");
    ASSERT_TRUE(send(link, say(first)).isOk());
    expectRefusal(link, "in another order");
  }
}

TEST(Link, DialersTryTheNextAddress) {
  Listening listening;
  // Nobody listens there; somebody listens and says nothing; at last the right one.
  auto closed = listenTcp(*makeSocketAddress("127.0.0.1", 0, 0), 1);
  const std::uint16_t closedPort = localAddress(*closed)->port();
  closed->reset();
  auto silent = listenTcp(*makeSocketAddress("127.0.0.1", 0, 0), 1);
  std::vector<NetAddress> addresses = {{"127.0.0.1", 0, closedPort, "lo"}, {"127.0.0.1", 0, localAddress(*silent)->port(), "lo"}};
  const auto nobody = dialLink({addresses.data(), 1}, kToken, kHello, onLoopback(), soon());
  EXPECT_EQ(nobody.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(nobody.status().message().find("ECONNREFUSED"), std::string::npos) << nobody.status().message();
  EXPECT_NE(nobody.status().message().find("rank 1 (127.0.0.1:"), std::string::npos) << nobody.status().message();
  addresses.push_back(listening.addresses()[0]);
  EXPECT_TRUE(dialLink(addresses, kToken, kHello, onLoopback(), soon()).isOk());
}

TEST(Link, HoldsItsDeadlines) {
  auto silent = listenTcp(*makeSocketAddress("127.0.0.1", 0, 0), 1);
  const NetAddress address{"127.0.0.1", 0, localAddress(*silent)->port(), "lo"};
  const auto start = Clock::now();
  const auto late = dialLink({&address, 1}, kToken, kHello, onLoopback(), start + std::chrono::milliseconds(100));
  EXPECT_EQ(late.status().code(), StatusCode::kTimeout);
  Listening listening;
  auto link = dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon());
  ASSERT_TRUE(link.isOk());
  const Deadline deadline = Clock::now() + std::chrono::milliseconds(100);
  EXPECT_EQ(link->receive(deadline).status().code(), StatusCode::kTimeout);
  Status sent;
  while ((sent = link->send(std::string(Link::kMaxMessageBytes, 'x'), deadline)).isOk()) {
  }
  EXPECT_EQ(sent.code(), StatusCode::kTimeout);
  const auto waited = Clock::now() - start;
  EXPECT_GE(waited, std::chrono::milliseconds(200));
  EXPECT_LT(waited, std::chrono::seconds(5));
}

TEST(Link, NoticesTheEnd) {
  Listening listening;
  auto link = dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon());
  ASSERT_TRUE(link.isOk());
  listening.finish().clear();
  EXPECT_EQ(link->receive(soon()).status().code(), StatusCode::kPeerFailed);
}

TEST(Link, MessagesAreBounded) {
  Listening listening;
  auto link = dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon());
  ASSERT_TRUE(link.isOk());
  EXPECT_EQ(link->send(std::string(Link::kMaxMessageBytes + 1, 'x'), soon()).code(), StatusCode::kInvalidArgument);
  auto& accepted = listening.finish();
  ASSERT_EQ(*sendSome(link->socket(), std::string("\x01\x00\x10\x00", 4)), 4U);
  EXPECT_EQ(accepted.at(0).link.receive(soon()).status().code(), StatusCode::kMismatch);
}

TEST(Link, WorksOverIpv6) {
  Listening listening;
  const auto addresses = listening.only(true);
  if (addresses.empty()) {
    GTEST_SKIP() << "the loopback interface has no IPv6 address here";
  }
  EXPECT_EQ(addresses[0].ip, "::1");
  const auto link = dialLink(addresses, kToken, kHello, onLoopback(), soon());
  ASSERT_TRUE(link.isOk()) << link.status().message();
  EXPECT_NE(link->remote().find("[::1]:"), std::string::npos) << link->remote();
}

TEST(Link, WorksOverLinkLocalAddresses) {
  Options options;
  const auto all = listInterfaces();
  ASSERT_TRUE(all.isOk());
  for (const InterfaceAddress& each : *all) {
    if (each.scope != 0 && each.isIpv6) {
      options.socketIfname = "=" + each.interface;
    }
  }
  if (options.socketIfname.empty()) {
    GTEST_SKIP() << "no interface has a link-local IPv6 address here (NetNamespaces tests it on interfaces of its own)";
  }
  Listening listening(options);
  std::vector<NetAddress> addresses;
  for (NetAddress each : listening.addresses()) {
    if (isLinkLocal(each.ip)) {
      each.scope = 0;  // the owner's number means nothing elsewhere
      addresses.push_back(each);
    }
  }
  const auto link = dialLink(addresses, kToken, kHello, options, soon());
  EXPECT_TRUE(link.isOk()) << link.status().message();
}

TEST(Link, ListensOnTheChosenInterfacesOnly) {
  const auto listener = LinkListener::create(onLoopback(), 4);
  ASSERT_TRUE(listener.isOk()) << listener.status().message();
  for (const NetAddress& each : listener->addresses()) {
    EXPECT_EQ(each.interface, "lo");
    EXPECT_NE(each.port, 0);
  }
  EXPECT_EQ(listener->addresses().at(0).ip, "127.0.0.1");
  // The port is open there and on no other address of this host.
  const auto elsewhere = startTcp(*makeSocketAddress("127.0.0.2", 0, listener->addresses()[0].port));
  if (elsewhere.isOk()) {
    ASSERT_TRUE(waitForSocket(*elsewhere, POLLOUT, soon(), "connecting").isOk());
    EXPECT_EQ(socketError(*elsewhere), ECONNREFUSED);
  }
}

TEST(Link, AnUnknownInterfaceIsAnErrorThatListsThoseThatAre) {
  Options options;
  options.socketIfname = "=nosuch0";
  const auto listener = LinkListener::create(options, 4);
  EXPECT_EQ(listener.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(listener.status().message().find("nosuch0"), std::string::npos) << listener.status().message();
  EXPECT_NE(listener.status().message().find("lo (127.0.0.1)"), std::string::npos) << listener.status().message();
}

// Written out by hand from the table in link_message.h; proofs computed with Python's hmac.
TEST(Link, WireBytesAreThese) {
  Challenge dialer;
  Challenge listener;
  std::string ascending;
  for (std::size_t i = 0; i < dialer.size(); ++i) {
    dialer[i] = static_cast<std::uint8_t>(i);
    listener[i] = static_cast<std::uint8_t>(100 + i);
    ascending += static_cast<char>(i);
  }
  EXPECT_EQ(toHex(framed("ab")), "020000006162");
  const LinkHello ranks{3, 1, 4, 3};
  EXPECT_EQ(toHex(encodeLinkMessage(hello(ranks, dialer))),
            "53574c4b0101"
            "030000000100000004000000"
            "03"
            "20000000" +
                toHex(ascending));
  LinkMessage message = say(LinkMessageType::kChallenge);
  message.challenge = dialer;
  EXPECT_EQ(toHex(encodeLinkMessage(message)),
            "53574c4b0102"
            "20000000" +
                toHex(ascending));
  message = say(LinkMessageType::kProof);
  message.proof = dialer;
  EXPECT_EQ(toHex(encodeLinkMessage(message)),
            "53574c4b0103"
            "20000000" +
                toHex(ascending));
  message.type = LinkMessageType::kWelcome;
  EXPECT_EQ(toHex(encodeLinkMessage(message)),
            "53574c4b0104"
            "20000000" +
                toHex(ascending));
  message = say(LinkMessageType::kRefusal);
  message.refusal = {StatusCode::kMismatch, "no"};
  EXPECT_EQ(toHex(encodeLinkMessage(message)),
            "53574c4b0105"
            "05"
            "020000006e6f");
  const LinkKey key = makeLinkKey(kToken, "job");
  const Digest secret = linkSecret(key, ranks, dialer, listener);
  EXPECT_EQ(toHex(asText(proveLink(key, LinkRole::kDialer, ranks, dialer, listener))),
            "676cf2db90df676de3e26cd16b1c1e93638db3250e6bed9deb96593e18c2a28f");
  EXPECT_EQ(toHex(asText(proveLink(key, LinkRole::kListener, ranks, dialer, listener))),
            "4eb356867d70c1ce0ab27325288fdd29d3261fb5727ebee84e512d679401c338");
  EXPECT_EQ(toHex(asText(secret)), "598b05c6882fa95e381616049467d87e5ee3856209d57f2d34a0cb521492427d");
  EXPECT_EQ(toHex(asText(proveSocket(secret, "data 0"))), "0b975941025ce3b8a3b0449db5c499c4ed4ec665a91847969b0be50db478f2d7");
}

TEST(Link, MessagesAreReadAsWritten) {
  for (const LinkMessageType type : {LinkMessageType::kHello, LinkMessageType::kChallenge, LinkMessageType::kProof,
                                     LinkMessageType::kWelcome, LinkMessageType::kRefusal}) {
    LinkMessage message = say(type);
    message.hello = kHello;
    message.challenge.fill(7);
    message.proof.fill(9);
    message.refusal = {StatusCode::kMismatch, "because"};
    const std::string bytes = encodeLinkMessage(message);
    const auto read = decodeLinkMessage(bytes);
    ASSERT_TRUE(read.isOk()) << read.status().message();
    EXPECT_EQ(encodeLinkMessage(*read), bytes);
    // Cut short or with a byte too many, it is none.
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decodeLinkMessage(std::string_view(bytes).substr(0, size)).isOk()) << size;
    }
    EXPECT_FALSE(decodeLinkMessage(bytes + "x").isOk());
  }
}

InterfaceAddress interface(const std::string& name, const std::string& ip, int bits, bool isLoopback = false) {
  return {name, ip, isLinkLocal(ip) ? 2U : 0U, bits, ip.find(':') != std::string::npos, isLoopback};
}

std::string namesOf(const std::vector<InterfaceAddress>& interfaces) {
  std::string names;
  for (const InterfaceAddress& each : interfaces) {
    names += (names.empty() ? "" : " ") + each.ip;
  }
  return names;
}

TEST(Interfaces, AreChosenAsNcclDoes) {
  const std::vector<InterfaceAddress> all = {interface("lo", "127.0.0.1", 8, true), interface("docker0", "172.17.0.1", 16),
                                             interface("eth0", "fe80::1", 64),      interface("eth0", "10.0.0.1", 24),
                                             interface("eth0", "fd00::1", 64),      interface("eth01", "10.1.0.1", 24),
                                             interface("ib0", "10.2.0.1", 24)};
  const auto chosen = [&](const char* choice) { return namesOf(chooseInterfaces(all, choice)); };
  EXPECT_EQ(chosen(""), "10.0.0.1 10.1.0.1 10.2.0.1 fd00::1 fe80::1");
  EXPECT_EQ(chosen("eth"), "10.0.0.1 10.1.0.1 fd00::1 fe80::1");
  EXPECT_EQ(chosen("=eth0"), "10.0.0.1 fd00::1 fe80::1");
  EXPECT_EQ(chosen("ib,docker"), "172.17.0.1 10.2.0.1");
  EXPECT_EQ(chosen("=ib0,eth01"), "10.1.0.1 10.2.0.1");
  EXPECT_EQ(chosen("^eth"), "172.17.0.1 10.2.0.1");
  EXPECT_EQ(chosen("^=eth0,docker0"), "10.1.0.1 10.2.0.1");
  EXPECT_EQ(chosen("lo"), "127.0.0.1");
  EXPECT_EQ(chosen("^eth,docker,ib"), "127.0.0.1");
  EXPECT_EQ(chosen("wlan"), "");
  EXPECT_EQ(chosen(","), chosen(""));
}

TEST(Interfaces, FallBackToBridgesAndThenToLoopback) {
  std::vector<InterfaceAddress> all = {interface("lo", "127.0.0.1", 8, true)};
  EXPECT_EQ(namesOf(chooseInterfaces(all, "")), "127.0.0.1");
  all.push_back(interface("docker0", "172.17.0.1", 16));
  EXPECT_EQ(namesOf(chooseInterfaces(all, "")), "172.17.0.1");
  EXPECT_EQ(namesOf(chooseInterfaces({}, "")), "");
}

TEST(Interfaces, SubnetsAreComparedByTheirBits) {
  const std::vector<InterfaceAddress> mine = {interface("eth0", "10.0.4.1", 22), interface("eth0", "fd00:1::1", 64)};
  EXPECT_TRUE(isInSubnet(mine, "10.0.7.255"));
  EXPECT_FALSE(isInSubnet(mine, "10.0.8.0"));
  EXPECT_TRUE(isInSubnet(mine, "fd00:1::ffff"));
  EXPECT_FALSE(isInSubnet(mine, "fd00:1:0:1::1"));
  EXPECT_FALSE(isInSubnet(mine, "nonsense"));
  EXPECT_TRUE(isLinkLocal("febf::1"));
  EXPECT_FALSE(isLinkLocal("fec0::1"));
  EXPECT_FALSE(isLinkLocal("169.254.0.1"));
}

}  // namespace
}  // namespace shardwire::internal
