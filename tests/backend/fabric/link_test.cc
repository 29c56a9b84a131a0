// Links: which dialers get a link, which are rejected, and that foreign processes delay no rank. First the handshake
// with right and wrong tokens, ranks and proofs; then silent dialers and garbage; then several endpoints at one
// listener; then addresses, deadlines and interfaces; at last the bytes of the messages.
#include "backend/fabric/link.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "backend/base/wait_limit.h"
#include "backend/base/wire.h"
#include "backend/fabric/interfaces.h"
#include "backend/fabric/link_listener.h"
#include "backend/fabric/link_message.h"
#include "backend/fabric/net_socket.h"
#include "tests/support/dial_link.h"
#include "tests/support/hex.h"

namespace shardwire::internal {
namespace {

using testing::toHex;

constexpr RandomId kToken{{0x1111, 0x2222}};
constexpr int kWorldSize = 4;
constexpr Rank kListener = 1;
const LinkHello kHello{3, kListener, kWorldSize, 3, makeEndpointId(kToken)};

Deadline soon() {
  return Clock::now() + std::chrono::seconds(10);
}

Options onLoopback() {
  Options options;
  options.socketIfname = "lo";
  return options;
}

// A listener with an endpoint of rank 1, and a thread that serves the listener, as the fabric's thread does, until the
// destructor.
class Listening {
 public:
  explicit Listening(const Options& options = onLoopback(), Duration proveWithin = LinkListener::kProveWithin,
                     bool isOpen = true) {
    watches_ = *FdWatches::create();
    auto ports = listenOnInterfaces(*listInterfaces(), options);
    EXPECT_TRUE(ports.isOk()) << ports.status().message();
    auto made = LinkListener::create(std::move(*ports), watches_, proveWithin);
    EXPECT_TRUE(made.isOk()) << made.status().message();
    listener_ = *made;
    endpoint_ = std::move(*listener_->addEndpoint(kHello.endpoint, kWorldSize, [this] { ++numCalls_; }));
    if (isOpen) {
      open(makeLinkKey(kToken, options.jobToken));
    }
    thread_ = std::thread([this] { serve(); });
  }
  ~Listening() { finish(); }

  void open(const LinkKey& key) { endpoint_->open({kListener, kWorldSize, key, {}, {}}); }
  void leave() { endpoint_.reset(); }
  LinkListener& listener() { return *listener_; }
  const std::vector<NetAddress>& addresses() const { return listener_->addresses(); }
  std::vector<NetAddress> only(bool ipv6) const {
    std::vector<NetAddress> found;
    for (const NetAddress& each : addresses()) {
      if ((each.ip.find(':') != std::string::npos) == ipv6) {
        found.push_back(each);
      }
    }
    return found;
  }
  // Ends the thread; returns the links that the endpoint accepted.
  std::vector<AcceptedLink>& finish() {
    stop_ = true;
    if (thread_.joinable()) {
      thread_.join();
    }
    if (endpoint_ != nullptr) {
      auto accepted = endpoint_->take();
      EXPECT_TRUE(accepted.isOk()) << accepted.status().message();
      EXPECT_GE(numCalls_, static_cast<int>(accepted->size()));
      std::move(accepted->begin(), accepted->end(), std::back_inserter(accepted_));
    }
    return accepted_;
  }

 private:
  void serve() {
    while (!stop_) {
      pollfd entry{watches_->socket().get(), POLLIN, 0};
      ::poll(&entry, 1, 10);
      watches_->serve();
      if (listener_->isPressed()) {
        listener_->serve();
      }
    }
  }

  std::shared_ptr<FdWatches> watches_;
  std::shared_ptr<LinkListener> listener_;
  std::unique_ptr<LinkEndpoint> endpoint_;
  std::vector<AcceptedLink> accepted_;
  std::atomic<int> numCalls_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A socket to the listener on which nothing was sent yet.
Fd callFrom(const std::vector<NetAddress>& addresses) {
  const auto address = makeSocketAddress(addresses.at(0).ip, addresses.at(0).scope, addresses.at(0).port);
  auto socket = startTcp(*address);
  EXPECT_TRUE(socket.isOk()) << socket.status().message();
  EXPECT_TRUE(WaitLimit(soon()).waitFor(*socket, POLLOUT, "calling").isOk());
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

// The link is refused with these words, and then closed.
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
  // Both ends know a secret of this link alone, which was never sent.
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

TEST(Link, AnotherTokenIsRejected) {
  Listening listening;
  const auto wrong = dialLink(listening.addresses(), RandomId{{0x1111, 0x2223}}, kHello, onLoopback(), soon());
  EXPECT_EQ(wrong.status().code(), StatusCode::kMismatch);
  EXPECT_NE(wrong.status().message().find("does not know the group's token"), std::string::npos)
      << wrong.status().message();
  EXPECT_EQ(wrong.status().message().find("firewall"), std::string::npos) << wrong.status().message();
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
  EXPECT_EQ(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).status().code(),
            StatusCode::kMismatch);
}

TEST(Link, RanksThatDoNotFitAreRejectedWithTheReason) {
  Listening listening;
  const std::pair<LinkHello, const char*> cases[] = {
      {{3, 2, kWorldSize, 3, kHello.endpoint}, "found rank 1"},
      {{3, 1, 8, 3, kHello.endpoint}, "rank 3 of 8"},
      {{4, 1, kWorldSize, 3, kHello.endpoint}, "calls itself rank 4 of 4"},
      {{-1, 1, kWorldSize, 3, kHello.endpoint}, "calls itself rank -1"},
      {{1, 1, kWorldSize, 3, kHello.endpoint}, "calls itself rank 1"}};
  for (const auto& [ranks, words] : cases) {
    const auto link = dialLink(listening.addresses(), kToken, ranks, onLoopback(), soon());
    EXPECT_EQ(link.status().code(), StatusCode::kMismatch);
    EXPECT_NE(link.status().message().find(words), std::string::npos) << link.status().message();
  }
  EXPECT_TRUE(listening.finish().empty());
}

TEST(Link, AForgedProofIsRejected) {
  Listening listening;
  Link caller(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(caller, hello(kHello, {})).isOk());
  EXPECT_EQ(receive(caller).type, LinkMessageType::kChallenge);
  ASSERT_TRUE(send(caller, say(LinkMessageType::kProof)).isOk());
  expectRefusal(caller, "does not know the group's token");
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

// A dialer that claims other ranks than the ranks of the proof.
TEST(Link, AProofHoldsForItsRanksOnly) {
  const LinkKey key = makeLinkKey(kToken, "");
  Listening listening;
  Link link(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(link, hello({2, kListener, kWorldSize, 3, kHello.endpoint}, {})).isOk());
  LinkMessage proof = say(LinkMessageType::kProof);
  proof.proof = proveLink(key, LinkRole::kDialer, kHello, {}, receive(link).challenge);
  ASSERT_TRUE(send(link, proof).isOk());
  expectRefusal(link, "does not know the group's token");
}

// A false listener that answers every dialer with the dialer's own bytes: the challenge, the proof.
TEST(Link, ReflectionDoesNotConvinceADialer) {
  auto listener = listenTcp(*makeSocketAddress("127.0.0.1", 0, 0), 4);
  ASSERT_TRUE(listener.isOk());
  std::thread mirror([&] {
    EXPECT_TRUE(WaitLimit(soon()).waitFor(*listener, POLLIN, "waiting").isOk());
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
  EXPECT_NE(link.status().message().find("does not know the group's token"), std::string::npos)
      << link.status().message();
  mirror.join();
}

TEST(Link, SilentCallersHoldUpNobody) {
  Listening listening;
  std::vector<Fd> callers;
  for (int i = 0; i < 20; ++i) {
    callers.push_back(callFrom(listening.addresses()));
  }
  Link halfSaid(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(halfSaid, hello(kHello, {})).isOk());
  const auto start = Clock::now();
  const auto link = dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon());
  ASSERT_TRUE(link.isOk()) << link.status().message();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));  // each silent connection may stay for 10 s
  EXPECT_EQ(listening.finish().size(), 1U);
}

TEST(Link, ASilentCallerIsRejectedInTheEnd) {
  Listening listening(onLoopback(), std::chrono::milliseconds(100));
  Link caller(callFrom(listening.addresses()), "listener");
  expectRefusal(caller, "said too little");
}

TEST(Link, ManyUnknownCallersDoNotUseUpTheListener) {
  Listening listening;
  std::vector<Fd> callers;
  for (int i = 0; i < 200; ++i) {
    callers.push_back(callFrom(listening.addresses()));
  }
  EXPECT_TRUE(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).isOk());
}

// Of the silent callers at the IPv4 port, only as many are in the way as the listener lets in at a time.
TEST(Link, ManySilentCallersAtOnePortDoNotHoldUpAnother) {
  Listening listening;
  const auto other = listening.only(true);
  if (other.empty()) {
    GTEST_SKIP() << "lo has one address here";
  }
  constexpr int kSilent = 600;
  std::vector<Fd> callers;
  for (int i = 0; i < kSilent; ++i) {
    callers.push_back(callFrom(listening.only(false)));
  }
  ASSERT_TRUE(dialLink(other, kToken, kHello, onLoopback(), soon()).isOk());
  const auto numRejected = std::count_if(callers.begin(), callers.end(), [](const Fd& caller) {
    pollfd entry{caller.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  });
  EXPECT_LT(numRejected, kSilent / 2);
}

// With as many silent callers as the listener accepts at a time, waiting callers do not wake the thread.
TEST(Link, CallersThatMustWaitDoNotWakeTheListener) {
  constexpr int kMost = 1000;
  const auto watches = *FdWatches::create();
  auto ports = listenOnInterfaces(*listInterfaces(), onLoopback());
  ASSERT_TRUE(ports.isOk()) << ports.status().message();
  const auto listener = LinkListener::create(std::move(*ports), watches);
  ASSERT_TRUE(listener.isOk()) << listener.status().message();
  std::vector<Fd> callers;
  for (int i = 0; i < 200; ++i) {
    callers.push_back(callFrom((*listener)->addresses()));
  }
  const auto isWoken = [&] {
    pollfd entry{watches->socket().get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  };
  ASSERT_TRUE(WaitLimit(soon()).waitFor(watches->socket(), POLLIN, "waiting for callers").isOk());
  int numServed = 0;
  for (; numServed < kMost && isWoken(); ++numServed) {
    watches->serve();
  }
  EXPECT_LT(numServed, kMost);
  EXPECT_TRUE((*listener)->isPressed());
}

TEST(Link, GarbageIsRejected) {
  Listening listening;
  const std::string garbled = encodeLinkMessage(hello(kHello, {})).substr(0, 20);
  const std::string http = "GET / HTTP/1.1\r\nHost: shardwire\r\n\r\n";
  for (const std::string& bytes :
       {http, std::string(64, '\0'), std::string(4, '\xff'), framed(garbled), framed("SWLK")}) {
    const Fd socket = callFrom(listening.addresses());
    ASSERT_EQ(*sendSome(socket, bytes), bytes.size());
    std::string answer(4096, '\0');
    ssize_t size = 0;
    do {  // a refusal, then the end
      ASSERT_TRUE(WaitLimit(soon()).waitFor(socket, POLLIN, "waiting to be rejected").isOk());
      size = ::recv(socket.get(), answer.data(), answer.size(), 0);
    } while (size > 0);
  }
  EXPECT_TRUE(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).isOk());
  EXPECT_EQ(listening.finish().size(), 1U);
}

TEST(Link, AFloodOfGarbageDoesNotFillTheLog) {
  Listening listening;
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 4 * Rejections::kMostLines; ++i) {
    const Fd socket = callFrom(listening.addresses());
    ASSERT_EQ(*sendSome(socket, framed("SWLK")), framed("SWLK").size());
    ASSERT_TRUE(WaitLimit(soon()).waitFor(socket, POLLIN, "waiting to be rejected").isOk());
  }
  listening.finish();
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), Rejections::kMostLines) << lines;
}

TEST(Link, AnotherVersionGetsTheReason) {
  Listening listening;
  Link link(callFrom(listening.addresses()), "listener");
  std::string bytes = encodeLinkMessage(hello(kHello, {}));
  bytes[4] = 9;
  ASSERT_TRUE(link.send(bytes, soon()).isOk());
  expectRefusal(link, "speaks version 9 of the link protocol");
}

TEST(Link, AWelcomeComesLastOrNotAtAll) {
  Listening listening;
  for (const LinkMessageType first :
       {LinkMessageType::kProof, LinkMessageType::kWelcome, LinkMessageType::kChallenge}) {
    Link link(callFrom(listening.addresses()), "listener");
    ASSERT_TRUE(send(link, say(first)).isOk());
    expectRefusal(link, "in another order");
  }
}

// A dialer that connects before the listening rank is ready waits without a time limit, and is accepted as soon as the
// rank is ready.
TEST(LinkEndpoint, ThatIsNotOpenYetHoldsItsCallers) {
  Listening listening(onLoopback(), std::chrono::seconds(1), false);
  Link early(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(early, hello(kHello, {})).isOk());
  LinkMessage proof = say(LinkMessageType::kProof);
  proof.proof = proveLink(makeLinkKey(kToken, ""), LinkRole::kDialer, kHello, {}, receive(early).challenge);
  ASSERT_TRUE(send(early, proof).isOk());
  // A dialer without a proof has no more time than before.
  Link silent(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(silent, hello(kHello, {})).isOk());
  EXPECT_EQ(receive(silent).type, LinkMessageType::kChallenge);
  expectRefusal(silent, "said too little");
  // A dialer without the token is held, too, and is rejected later.
  Link caller(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(caller, hello(kHello, {})).isOk());
  EXPECT_EQ(receive(caller).type, LinkMessageType::kChallenge);
  ASSERT_TRUE(send(caller, say(LinkMessageType::kProof)).isOk());
  // A dialer that continues to send meanwhile is no rank.
  Link talker(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(talker, hello(kHello, {})).isOk());
  EXPECT_EQ(receive(talker).type, LinkMessageType::kChallenge);
  ASSERT_TRUE(send(talker, say(LinkMessageType::kProof)).isOk());
  ASSERT_TRUE(send(talker, say(LinkMessageType::kProof)).isOk());
  expectRefusal(talker, "in another order");
  EXPECT_EQ(early.receive(Clock::now()).status().code(), StatusCode::kTimeout);
  listening.open(makeLinkKey(kToken, ""));
  EXPECT_EQ(receive(early).type, LinkMessageType::kWelcome);
  expectRefusal(caller, "does not know the group's token");
  EXPECT_EQ(listening.finish().size(), 1U);
}

TEST(LinkEndpoint, OfNoGroupIsRefusedAtOnce) {
  Listening listening;
  LinkHello elsewhere = kHello;
  elsewhere.endpoint = RandomId{{1, 2}};
  const auto hello = [&](const LinkHello& ranks) {
    LinkDial dial(listening.addresses(), makeLinkKey(kToken, ""), ranks);
    std::optional<Result<Link>> link;
    while (!(link = dial.step()).has_value()) {
      std::vector<pollfd> entries;
      const Deadline next = dial.appendSockets(&entries);
      EXPECT_TRUE(WaitLimit(soon()).sooner(next).poll(entries).isOk());
    }
    EXPECT_EQ(link->isOk(), !dial.wasRefused());
    return link->status();
  };
  const Status refused = hello(elsewhere);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);  // as without a listener
  EXPECT_NE(refused.message().find("asks for a group that is not here"), std::string::npos) << refused.message();
  EXPECT_TRUE(hello(kHello).isOk());
  listening.leave();
  EXPECT_NE(hello(kHello).message().find("asks for a group that is not here"), std::string::npos);
}

// Two groups of one process: each accepts only its own dialers, by the group's own token, and the end of one group
// closes no connection of the other.
TEST(LinkEndpoint, IsOneOfManyAtAListener) {
  constexpr RandomId kOther{{0x3333, 0x4444}};
  Listening listening;
  int numCalls = 0;
  auto other = listening.listener().addEndpoint(makeEndpointId(kOther), 2, [&] { ++numCalls; });
  ASSERT_TRUE(other.isOk());
  EXPECT_FALSE(listening.listener().addEndpoint(makeEndpointId(kOther), 2, [] {}).isOk());
  (*other)->open({0, 2, makeLinkKey(kOther, ""), {}, {}});
  const LinkHello toOther{1, 0, 2, 3, makeEndpointId(kOther)};
  EXPECT_TRUE(dialLink(listening.addresses(), kOther, toOther, onLoopback(), soon()).isOk());
  EXPECT_TRUE(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).isOk());
  // The token of one does not open the other.
  EXPECT_EQ(dialLink(listening.addresses(), kToken, toOther, onLoopback(), soon()).status().code(),
            StatusCode::kMismatch);
  LinkHello wrongEndpoint = toOther;
  wrongEndpoint.endpoint = kHello.endpoint;
  EXPECT_EQ(dialLink(listening.addresses(), kOther, wrongEndpoint, onLoopback(), soon()).status().code(),
            StatusCode::kMismatch);
  const auto ofOther = (*other)->take();
  ASSERT_TRUE(ofOther.isOk());
  ASSERT_EQ(ofOther->size(), 1U);
  EXPECT_EQ(ofOther->at(0).hello, toOther);
  EXPECT_EQ(numCalls, 1);
  other->reset();
  EXPECT_TRUE(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).isOk());
  EXPECT_EQ(listening.finish().size(), 2U);
}

TEST(LinkEndpoint, ThatGoesHangsUpOnWhoWaits) {
  Listening listening(onLoopback(), LinkListener::kProveWithin, false);
  Link early(callFrom(listening.addresses()), "listener");
  ASSERT_TRUE(send(early, hello(kHello, {})).isOk());
  EXPECT_EQ(receive(early).type, LinkMessageType::kChallenge);
  listening.leave();
  expectRefusal(early, "its rank has just left");
}

// More connections at one endpoint than the limit: a connection whose time is over makes room, and a rank gets in;
// other endpoints are not affected.
TEST(LinkEndpoint, IsNotUsedUpByManyUnknownCallers) {
  Listening listening;
  auto other = listening.listener().addEndpoint(makeEndpointId({{5, 6}}), 2, [] {});
  ASSERT_TRUE(other.isOk());
  LinkHello toOther = kHello;
  toOther.endpoint = makeEndpointId({{5, 6}});
  std::vector<Link> callers;
  for (int i = 0; i < 66; ++i) {
    callers.emplace_back(callFrom(listening.addresses()), "listener");
    ASSERT_TRUE(send(callers.back(), hello(toOther, {})).isOk());
    EXPECT_EQ(receive(callers.back()).type, LinkMessageType::kChallenge);
  }
  EXPECT_TRUE(dialLink(listening.addresses(), kToken, kHello, onLoopback(), soon()).isOk());
  (*other)->open({kListener, kWorldSize, makeLinkKey({{5, 6}}, ""), {}, {}});
  Status joined;
  do {  // too many dialers at this endpoint: dial again, as `RankLinks::dial()` does
    joined = dialLink(listening.addresses(), RandomId{{5, 6}}, toOther, onLoopback(), soon()).status();
  } while (!joined.isOk() && joined.message().find("while too many dialed") != std::string::npos);
  EXPECT_TRUE(joined.isOk()) << joined.message();
}

TEST(Link, DialersTryTheNextAddress) {
  Listening listening;
  // The first address has no listener; the listener of the second sends nothing; the last address is right.
  auto closed = listenTcp(*makeSocketAddress("127.0.0.1", 0, 0), 1);
  const std::uint16_t closedPort = localAddress(*closed)->port();
  closed->reset();
  auto silent = listenTcp(*makeSocketAddress("127.0.0.1", 0, 0), 1);
  std::vector<NetAddress> addresses = {{"127.0.0.1", 0, closedPort, "lo"},
                                       {"127.0.0.1", 0, localAddress(*silent)->port(), "lo"}};
  const auto nobody = dialLink({addresses.data(), 1}, kToken, kHello, onLoopback(), soon());
  EXPECT_EQ(nobody.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(nobody.status().message().find("ECONNREFUSED"), std::string::npos) << nobody.status().message();
  EXPECT_NE(nobody.status().message().find("rank 1 (127.0.0.1:"), std::string::npos) << nobody.status().message();
  EXPECT_NE(nobody.status().message().find("firewall"), std::string::npos) << nobody.status().message();
  addresses.push_back(listening.addresses()[0]);
  EXPECT_TRUE(dialLink(addresses, kToken, kHello, onLoopback(), soon()).isOk());
}

// Two listeners for one dialer, with the test in place of both.
class TwoListeners : public ::testing::Test {
 protected:
  TwoListeners() {
    std::vector<NetAddress> addresses;
    for (Fd& each : listeners_) {
      each = std::move(*listenTcp(*makeSocketAddress("127.0.0.1", 0, 0), 4));
      addresses.push_back({"127.0.0.1", 0, localAddress(each)->port(), "lo"});
    }
    dial_.emplace(addresses, makeLinkKey(kToken, ""), kHello);
  }
  void stepUntilReadable(const Fd& socket) {
    pollfd entry{socket.get(), POLLIN, 0};
    for (const Deadline end = soon(); ::poll(&entry, 1, 1) == 0 && Clock::now() < end;) {
      EXPECT_FALSE(dial_->step().has_value());
    }
  }
  // Takes the dialer's hello.
  Link accept(const Fd& listener) {
    stepUntilReadable(listener);
    auto socket = acceptTcp(listener);
    EXPECT_TRUE(socket.isOk() && socket->isOpen());
    Link link(std::move(*socket), "dialer");
    stepUntilReadable(link.socket());
    EXPECT_EQ(receive(link).type, LinkMessageType::kHello);
    return link;
  }
  // The sockets that the dialer watches.
  std::size_t numWatched() const {
    std::vector<pollfd> entries;
    static_cast<void>(dial_->appendSockets(&entries));
    return entries.size();
  }

  std::array<Fd, 2> listeners_;
  std::optional<LinkDial> dial_;
};

TEST_F(TwoListeners, GetNoProofsAtOnce) {
  Link first = accept(listeners_[0]);
  Link second = accept(listeners_[1]);
  EXPECT_EQ(numWatched(), 2U);
  ASSERT_TRUE(send(first, say(LinkMessageType::kChallenge)).isOk());
  stepUntilReadable(first.socket());
  EXPECT_EQ(receive(first).type, LinkMessageType::kProof);
  EXPECT_EQ(numWatched(), 1U);
  ASSERT_TRUE(send(second, say(LinkMessageType::kChallenge)).isOk());
  EXPECT_FALSE(dial_->step().has_value());
  EXPECT_EQ(numWatched(), 1U);
  first.takeSocket().reset();
  stepUntilReadable(second.socket());
  EXPECT_EQ(receive(second).type, LinkMessageType::kProof);
}

TEST_F(TwoListeners, AreNotDialedAtOnce) {
  EXPECT_FALSE(dial_->step().has_value());
  std::vector<pollfd> entries;
  const Deadline next = dial_->appendSockets(&entries);
  EXPECT_EQ(entries.size(), 1U);
  EXPECT_FALSE(dial_->step().has_value());
  const std::size_t numNow = numWatched();
  if (Clock::now() < next) {  // or this machine is busy
    EXPECT_EQ(numNow, 1U);
  }
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

TEST(Link, AResetWhileAMessageIsReadIsTheEndOfThePeer) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  const Fd near(ends[0]);
  Fd far(ends[1]);
  ASSERT_EQ(*sendSome(near, "nobody reads this"), 17U);
  far.reset();
  MessageReader reader(kMaxHandshakeBytes);
  const auto read = reader.readOn(near);
  EXPECT_EQ(read.status().code(), StatusCode::kPeerFailed);
  EXPECT_NE(read.status().message().find("ECONNRESET"), std::string::npos) << read.status().message();
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
  const auto ports = listenOnInterfaces(*listInterfaces(), onLoopback());
  ASSERT_TRUE(ports.isOk()) << ports.status().message();
  for (const NetAddress& each : ports->addresses) {
    EXPECT_EQ(each.interface, "lo");
    EXPECT_NE(each.port, 0);
  }
  EXPECT_EQ(ports->sockets.size(), ports->addresses.size());
  EXPECT_EQ(ports->addresses.at(0).ip, "127.0.0.1");
  // The port is open there and on no other address of this host.
  const auto elsewhere = startTcp(*makeSocketAddress("127.0.0.2", 0, ports->addresses[0].port));
  if (elsewhere.isOk()) {
    ASSERT_TRUE(WaitLimit(soon()).waitFor(*elsewhere, POLLOUT, "connecting").isOk());
    EXPECT_EQ(socketError(*elsewhere), ECONNREFUSED);
  }
}

TEST(Link, AnUnknownInterfaceIsAnErrorThatListsThoseThatAre) {
  Options options;
  options.socketIfname = "=nosuch0";
  const auto ports = listenOnInterfaces(*listInterfaces(), options);
  EXPECT_EQ(ports.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(ports.status().message().find("nosuch0"), std::string::npos) << ports.status().message();
  EXPECT_NE(ports.status().message().find("lo (127.0.0.1)"), std::string::npos) << ports.status().message();
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
  const LinkHello ranks{3, 1, 4, 3, RandomId{{0x0706050403020100, 0x0f0e0d0c0b0a0908}}};
  EXPECT_EQ(toHex(encodeLinkMessage(hello(ranks, dialer))),
            "53574c4b0301"
            "030000000100000004000000"
            "03"
            "000102030405060708090a0b0c0d0e0f"
            "20000000" +
                toHex(ascending));
  LinkMessage message = say(LinkMessageType::kChallenge);
  message.challenge = dialer;
  EXPECT_EQ(toHex(encodeLinkMessage(message)),
            "53574c4b0302"
            "20000000" +
                toHex(ascending));
  message = say(LinkMessageType::kProof);
  message.proof = dialer;
  EXPECT_EQ(toHex(encodeLinkMessage(message)),
            "53574c4b0303"
            "20000000" +
                toHex(ascending));
  message.type = LinkMessageType::kWelcome;
  EXPECT_EQ(toHex(encodeLinkMessage(message)),
            "53574c4b0304"
            "20000000" +
                toHex(ascending));
  message = say(LinkMessageType::kRefusal);
  message.refusal = {StatusCode::kMismatch, "no"};
  EXPECT_EQ(toHex(encodeLinkMessage(message)),
            "53574c4b0305"
            "05"
            "020000006e6f");
  const LinkKey key = makeLinkKey(kToken, "job");
  const Digest secret = linkSecret(key, ranks, dialer, listener);
  EXPECT_EQ(toHex(asText(proveLink(key, LinkRole::kDialer, ranks, dialer, listener))),
            "72ef50fbc0984841540a7954dcdc8e57127761b68fae8494d1a1dbb54f181a08");
  EXPECT_EQ(toHex(asText(proveLink(key, LinkRole::kListener, ranks, dialer, listener))),
            "f4f310d0522db19d240490f1eaa84034b64c7d2ac9fe387421b2128a6016228f");
  EXPECT_EQ(toHex(asText(secret)), "a5b25c7843cc4e50efe4fc44a4e245ff4bdd2127efd367c47cbf39a298c903ce");
  EXPECT_EQ(toHex(asText(proveSocket(secret, "data 0"))),
            "42019f93fd631f688a74e02af2e7db839641032fa367a898bb375c59728163c7");
  const RandomId endpoint = makeEndpointId(kToken);
  ByteWriter writer;
  idField(writer, endpoint);
  EXPECT_EQ(toHex(writer.bytes()), "485acc647443e33cd048e98efcda1333");
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
    // A message that is cut short or has one byte too many is refused.
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decodeLinkMessage(std::string_view(bytes).substr(0, size)).isOk()) << size;
    }
    EXPECT_FALSE(decodeLinkMessage(bytes + "x").isOk());
  }
}

InterfaceAddress interface(const std::string& name, const std::string& ip, int bits, bool isLoopback = false) {
  return {name, ip, isLinkLocal(ip) ? 2U : 0U, bits, ip.find(':') != std::string::npos, isLoopback};
}

// In a process of its own, since the variable is read once.
TEST(Link, MultipathListensOnNoLinkLocalAddress) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto listen = [] {
    ::setenv("SHARDWIRE_TCP_MULTIPATH", "1", 1);
    const auto ports = listenOnInterfaces({interface("eth1", "fe80::1", 64)}, {});
    std::fputs(ports.status().message().c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(listen(), ::testing::ExitedWithCode(0),
              "eth1: Multipath TCP needs another address than the link-local fe80::1");
}

TEST(Link, SocketsAreOfMultipathTcpOnlyOnDemand) {
  const auto socket = listenTcp(*makeSocketAddress("127.0.0.1", 0, 0), 1);
  ASSERT_TRUE(socket.isOk()) << socket.status().message();
  int protocol = 0;
  socklen_t size = sizeof(protocol);
  ASSERT_EQ(::getsockopt(socket->get(), SOL_SOCKET, SO_PROTOCOL, &protocol, &size), 0);
  EXPECT_EQ(protocol == IPPROTO_TCP, !isMultipath()) << protocol;
}

std::string namesOf(const std::vector<InterfaceAddress>& interfaces) {
  std::string names;
  for (const InterfaceAddress& each : interfaces) {
    names += (names.empty() ? "" : " ") + each.ip;
  }
  return names;
}

TEST(Interfaces, AreChosenAsNcclDoes) {
  const std::vector<InterfaceAddress> all = {
      interface("lo", "127.0.0.1", 8, true), interface("docker0", "172.17.0.1", 16), interface("eth0", "fe80::1", 64),
      interface("eth0", "10.0.0.1", 24),     interface("eth0", "fd00::1", 64),       interface("eth01", "10.1.0.1", 24),
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

TEST(Interfaces, AreListedWithLoopbackMarked) {
  const auto all = listInterfaces();
  ASSERT_TRUE(all.isOk()) << all.status().message();
  const auto loopback = std::ranges::find(*all, "127.0.0.1", &InterfaceAddress::ip);
  ASSERT_NE(loopback, all->end());
  EXPECT_TRUE(loopback->isLoopback);
}

TEST(Interfaces, AreNamedWithTheirAddresses) {
  EXPECT_EQ(toString({interface("lo", "127.0.0.1", 8, true), interface("eth0", "10.0.0.1", 24)}),
            "lo (127.0.0.1), eth0 (10.0.0.1)");
  EXPECT_EQ(toString(std::vector<InterfaceAddress>()), "none");
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
